/*
 * What the frames between stages say: typed forms of their meta.  ds-frame(5) is the reference for the keys.
 */
#ifndef DS_FRAME_MESSAGES_H
#define DS_FRAME_MESSAGES_H

#include "frame/frame.h"

enum { REQUEST_ID_MAX = 64, REQUEST_MAX_STOP_IDS = 16, REQUEST_MAX_STOPS = 16, REQUEST_STOP_BYTES = 256,
	REQUEST_MAX_LOGPROBS = 20, REQUEST_MAX_BIAS = 1024, REQUEST_MAX_N = 128 };

struct logit_bias { uint32_t id; float bias; }; /* [-100, 100] */

struct sampling {
	double temperature;  /* 0: greedy */
	double top_p;        /* (0, 1] */
	uint64_t top_k;      /* 0: all */
	double min_p;        /* [0, 1]; 0: off */
	double repetition;   /* (0, 10]; 1: off */
	double presence;     /* [-2, 2]; 0: off */
	double frequency;    /* [-2, 2]; 0: off */
	struct logit_bias bias[REQUEST_MAX_BIAS]; /* [bias_count], by rising id, each once */
	size_t bias_count;
	uint64_t seed;
	bool logprobs;       /* token frames carry logprob; set by request_get where top_logprobs is */
	uint64_t top_logprobs; /* at most 20 */
};

struct stop_string { size_t n; char p[REQUEST_STOP_BYTES]; }; /* UTF-8, 1 to 256 bytes, not NUL-terminated */

struct request {
	char id[REQUEST_ID_MAX + 1];
	struct sampling sampling;
	uint64_t max_tokens;             /* 0: up to the context's end; of each choice */
	uint32_t stop_ids[REQUEST_MAX_STOP_IDS]; /* besides the model's eos */
	size_t stop_id_count;
	struct stop_string stops[REQUEST_MAX_STOPS];
	size_t stop_count;
	bool ignore_eos;
	uint64_t n;                      /* choices: answers to the one prompt, 1 to 128 */
	uint64_t arrival_ns;
};

/* What a request says that says nothing: greedy, one choice, nothing penalised. */
void request_defaults(struct request *r);
/* Puts a bias in its place; false where the token has one already, or there are too many. */
bool request_add_bias(struct sampling *s, uint32_t id, float bias);
/* Writes a request's keys except the tensor row; those that came with later versions only where they say something. */
void request_put(struct meta_builder *b, const struct request *r);
/* Reads and range-checks: DS_DATA names the key and its value. */
int request_get(const struct frame *f, struct request *r, struct ds_err *err);
/* The payload's prompt: tensor "tokens", U32, 1-d, at least one. */
int request_tokens(const struct frame *f, const uint32_t **ids, size_t *n, struct ds_err *err);

/* kv: one block of one request.  Tensor "kv" [layer, token, dim], BF16 or F32. */
enum { KV_KEY_HEX = 33 };            /* 32 digits and NUL */
struct kv_block {
	uint64_t first, count;       /* tokens first .. first + count */
	/* Of a sender that uses a store, in hexadecimal: the key of the store's block that ends here, and of the one
	 * before it (or what stands for the beginning).  "": not said. */
	char key[KV_KEY_HEX], parent[KV_KEY_HEX];
	bool has_decoded;            /* not all rows were made by prefill, as of a stored block may be: */
	uint64_t decoded;            /* the first that decode made */
};
void kv_block_put(struct meta_builder *b, const struct kv_block *k, enum dtype type, uint64_t layers, uint64_t block,
	uint64_t dim);
int kv_block_get(const struct frame *f, struct kv_block *k, struct frame_tensor *t, struct ds_err *err);

/* One token that was chosen, with the log-probabilities of the model's own distribution. */
struct top_logprob { uint32_t id; double logprob; };
struct sampled {
	uint32_t id;
	double logprob;              /* natural */
	size_t tops;
	struct top_logprob top[REQUEST_MAX_LOGPROBS]; /* [tops] the likeliest, falling */
};

/* prefilled: the prompt is done, these are the first tokens. */
struct usage { uint64_t prompt, hit, miss, completion; };
struct prefilled {
	uint64_t position;           /* of the tokens: the prompt's length */
	size_t n;                    /* choices, as the request asked */
	struct sampled *first;       /* [n] one a choice; the caller's */
	struct usage usage;
	uint64_t prefill_ns;
};
void prefilled_put(struct meta_builder *b, const struct prefilled *p);
/* first: memory for the n choices that the request asked for; a frame with another number of them is refused. */
int prefilled_get(const struct frame *f, struct sampled *first, size_t n, struct prefilled *p, struct ds_err *err);
/* The optional tensor "hidden", F32 [hidden]: the row that the payload begins with, put after prefilled_put; reading
 * it, *h is NULL where there is none. */
void prefilled_put_hidden(struct meta_builder *b, size_t hidden);
int prefilled_hidden(const struct frame *f, size_t hidden, const float **h, struct ds_err *err);

struct token {
	uint64_t index;              /* 0: the choice's first generated token */
	uint64_t choice;             /* below the request's n */
	struct sampled t;            /* logprob only with has_logprob */
	bool has_logprob;
	uint64_t t_ns;               /* wall clock */
	uint64_t hold;               /* bytes at the end of the choice's text that may begin a stop string: not to be
	                              * shown yet */
	char reason[16];             /* the choice's last token: its finish_reason; else "" */
	struct stop_string stop;     /* n != 0: the stop string that ended it */
	uint64_t cut;                /* bytes to be dropped from the end of the choice's text; only where it ends */
};
void token_put(struct meta_builder *b, const struct token *t);
int token_get(const struct frame *f, struct token *t, struct ds_err *err);

struct done_choice { char reason[16]; uint64_t completion; };
struct done {
	char id[REQUEST_ID_MAX + 1];
	char reason[16];             /* stop, length, cancelled: choice 0's */
	struct usage usage;          /* completion: of all choices */
	size_t choice_count;         /* 0: one choice, which `reason` and `usage` describe */
	struct done_choice choices[REQUEST_MAX_N];
	struct { uint64_t drafted, accepted, steps; } mtp; /* all 0: nothing was speculated */
	uint64_t prefill_ns, decode_ns;
};
void done_put(struct meta_builder *b, const struct done *d);
int done_get(const struct frame *f, struct done *d, struct ds_err *err);

struct error_message {
	uint64_t code;
	char id[REQUEST_ID_MAX + 1]; /* the request's, "" where it is not known */
	char text[1024];
	bool retryable;
};
void error_put(struct meta_builder *b, const struct error_message *e);
int error_get(const struct frame *f, struct error_message *e, struct ds_err *err);

#endif

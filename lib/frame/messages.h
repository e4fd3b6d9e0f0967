/*
 * What the frames between stages say: typed forms of their meta.  ds-frame(5) is the reference for the keys.
 */
#ifndef DS_FRAME_MESSAGES_H
#define DS_FRAME_MESSAGES_H

#include "frame/frame.h"

enum { REQUEST_ID_MAX = 64, REQUEST_MAX_STOP_IDS = 16, REQUEST_MAX_STOPS = 16, REQUEST_STOP_BYTES = 64,
	REQUEST_MAX_LOGPROBS = 20 };

struct sampling {
	double temperature;  /* 0: greedy */
	double top_p;        /* (0, 1] */
	uint64_t top_k;      /* 0: all */
	uint64_t seed;
	bool logprobs;       /* token frames carry logprob */
};

struct request {
	char id[REQUEST_ID_MAX + 1];
	struct sampling sampling;
	uint64_t max_tokens;             /* 0: up to the context's end */
	uint32_t stop_ids[REQUEST_MAX_STOP_IDS]; /* besides the model's eos */
	size_t stop_id_count;
	bool ignore_eos;
	uint64_t arrival_ns;
};

/* Writes every key of a request except the tensor row. */
void request_put(struct meta_builder *b, const struct request *r);
/* Reads and range-checks (DS_DATA names the key and its value); a sampling key that this version does not implement is
 * refused by name. */
int request_get(const struct frame *f, struct request *r, struct ds_err *err);
/* The payload's prompt: tensor "tokens", U32, 1-d, at least one. */
int request_tokens(const struct frame *f, const uint32_t **ids, size_t *n, struct ds_err *err);

/* kv: one block of one request.  Tensor "kv" [layer, token, dim], BF16 or F32. */
struct kv_block {
	uint64_t first, count;       /* tokens first .. first + count */
};
void kv_block_put(struct meta_builder *b, const struct kv_block *k, enum dtype type, uint64_t layers, uint64_t block,
	uint64_t dim);
int kv_block_get(const struct frame *f, struct kv_block *k, struct frame_tensor *t, struct ds_err *err);

/* prefilled: the prompt is done, this is the first token. */
struct usage { uint64_t prompt, hit, miss, completion; };
struct prefilled {
	uint64_t position;           /* of the token: the prompt's length */
	uint32_t token;
	double logprob;
	struct usage usage;
	uint64_t prefill_ns;
};
void prefilled_put(struct meta_builder *b, const struct prefilled *p);
int prefilled_get(const struct frame *f, struct prefilled *p, struct ds_err *err);

struct token {
	uint64_t index;              /* 0: the request's first generated token */
	uint32_t id;
	bool has_logprob;
	double logprob;              /* natural, of the untempered distribution */
	uint64_t t_ns;               /* wall clock */
};
void token_put(struct meta_builder *b, const struct token *t);
int token_get(const struct frame *f, struct token *t, struct ds_err *err);

struct done {
	char id[REQUEST_ID_MAX + 1];
	char reason[16];             /* stop, length */
	struct usage usage;
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

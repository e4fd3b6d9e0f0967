/*
 * What ds-token does: text or JSON lines to request frames, token frames to text, and two views of what lies between.
 */
#ifndef DS_SERVE_TOKEN_H
#define DS_SERVE_TOKEN_H

#include <jansson.h>

#include "base/json.h"
#include "base/opt.h"
#include "frame/messages.h"
#include "model/tokenizer.h"
#include "serve/stage.h"

#define TOKEN_NO_SEED UINT64_MAX /* --seed -1, and no seed in the JSON */

#define TOKEN_SEPARATOR "\\n"     /* the default, as it is written */

struct token_options {
	const char *model;
	bool chat, lines, jsonl, special;
	const char *system, *id;
	const char *separator;
	struct opt_list vars, ignore, stop_ids, stops, bias;
	double temperature, top_p, min_p, repetition, presence, frequency;
	int64_t top_k, seed, max_tokens, top_logprobs, n;
	bool logprobs, ignore_eos;
	bool generation_config;      /* defaults from the model's generation_config.json... */
	bool (*given)(const char *option); /* ...for what was not given on the command line */
};

/* The tokenizer of a model and what the options say about every request. */
struct tokenizing {
	const struct token_options *o;
	struct tokenizer *t;
	uint64_t vocab;              /* of the model, from config.json; 0: there is none */
	json_t *vars;                /* for the chat template */
	struct request defaults;     /* id is empty */
	struct buf separator;        /* what each answer of plain text ends with */
};

int tokenizing_open(struct tokenizing *x, const struct token_options *o, struct ds_err *err);
void tokenizing_close(struct tokenizing *x);

/* One prompt of plain text, or one JSON object (token_json.c): the ids of its prompt, and the rest of the request.
 * r->id stays as it is if it is not said.  DS_DATA. */
int token_from_text(struct tokenizing *x, const char *text, size_t n, struct ids *ids, struct ds_err *err);
int token_from_json(struct tokenizing *x, const char *json, size_t n, struct request *r, struct ids *ids,
	struct ds_err *err);
/* x->defaults from the model's generation_config.json, less options that were given.  DS_NOINPUT, DS_DATA. */
int token_generation_config(struct tokenizing *x, struct ds_err *err);
/* The chat prompt of a JSON array of messages, or of an object as above. */
int token_render_json(struct tokenizing *x, const char *json, size_t n, struct buf *out, struct ds_err *err);
/* The chat prompt of one message of the user. */
int token_render_text(struct tokenizing *x, const char *text, size_t n, struct buf *out, struct ds_err *err);

/* Token ids of requests are below this: the model's vocabulary, or else the tokenizer's. */
uint64_t token_vocab(const struct tokenizing *x);
/* One more stop string; DS_DATA where it cannot be one, or there are too many. */
int token_add_stop(struct request *r, const char *p, size_t n, struct ds_err *err);

/* Each runs to the end of its input (stage_run). */
int token_encode(struct tokenizing *x, const struct stage_config *stage, struct ds_err *err);
int token_decode(struct tokenizing *x, const struct stage_config *stage, struct ds_err *err);
int token_tokens(struct tokenizing *x, const struct stage_config *stage, struct ds_err *err);
int token_render(struct tokenizing *x, const struct stage_config *stage, struct ds_err *err);

#endif

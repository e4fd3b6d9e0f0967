/*
 * A prompt on its way through the engine, chunk by chunk: in ds-prefill, and in ds-decode for requests that come
 * without KV.
 */
#ifndef DS_SERVE_PROMPT_H
#define DS_SERVE_PROMPT_H

#include "serve/work.h"

struct prompt {
	const uint32_t *ids;  /* [count] */
	size_t count;
	struct kv_seq *kv;    /* length: how far it has come */
	float *hidden;        /* with MTP: [hidden] of its last token, once it is done; else NULL */
	uint64_t hit;         /* tokens whose KV was there */
	bool begun;
};

/* Begins it: what the cache of prefixes has, and with MTP memory for hidden.  DS_OS. */
int prompt_begin(struct work *w, struct prompt *p, struct ds_err *err);
void prompt_end(struct prompt *p);
static inline size_t prompt_left(const struct prompt *p) { return p->count - p->kv->length; }
/* What has been done of it: `length` of its tokens. */
static inline struct usage prompt_usage(const struct prompt *p, size_t length)
{
	return (struct usage){ .prompt = p->count, .hit = p->hit, .miss = length - p->hit };
}
/* Its next `rows` tokens as a segment; logits are wanted of the prompt's last.  name: the request's. */
struct segment prompt_segment(const struct prompt *p, size_t rows, uint64_t stream, const char *name);
/* What follows the step whose segment i was that of prompts[i], or of something else where that is NULL: MTP entries,
 * hidden states, prefixes to keep.  Overwrites what the step gave: sample first. */
int prompt_stepped(struct work *w, const struct segment *segs, struct prompt *const *prompts, size_t n,
	struct ds_err *err);
/* The first token of each of the request's choices, out [r->n], from the last segment of its prompt. */
int prompt_first(struct work *w, const struct request *r, const struct prompt *p, const struct segment *s,
	struct sampled *out, struct ds_err *err);

#endif

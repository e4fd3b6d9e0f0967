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
	/* with --kv, else NULL */
	uint8_t *decoded;     /* [count / KV_BLOCK + 1] how the rows of each block were made (kv_client.h) */
	struct store_key *keys; /* of the store's blocks, once it is complete; [key_count] */
	size_t key_count;
	struct kv_ask *ask;   /* what the store has of it */
	bool asked, looked_for; /* ask has begun; and is over, as far as the prompt waits for it */
	int64_t waits_ns;     /* since when it could be computed but for the store; 0: not yet */
};

/* Begins to look it up in the store, if there is one; as soon as it is here. */
void prompt_ask(struct work *w, struct prompt *p);
/* What the store does for it.  turn: it could be computed now.  WAITS: until the bell rings; --kv-timeout bounds that.
 * FETCH: prompt_fetch can be called when there is room, or it is left.  One that was given up keeps what has arrived,
 * and no blocks behind that. */
enum prompt_store { PROMPT_READY, PROMPT_WAITS, PROMPT_FETCH };
enum prompt_store prompt_store(struct work *w, struct prompt *p, bool turn);
/* Blocks of KV that prompt_fetch needs to be reserved, after prompt_begin. */
size_t prompt_fetch_blocks(const struct prompt *p);
void prompt_fetch(struct work *w, struct prompt *p);
void prompt_no_fetch(struct prompt *p); /* what is missing is computed */
/* Begins it: what the cache of prefixes has, and with MTP memory for hidden.  Once more before it is computed: what
 * came there meanwhile.  DS_OS. */
int prompt_begin(struct work *w, struct prompt *p, struct ds_err *err);
/* Gives its KV back, as if it had not begun. */
void prompt_reset(struct work *w, struct prompt *p);
void prompt_end(struct prompt *p);
static inline size_t prompt_left(const struct prompt *p) { return p->count - p->kv->length; }
/* Also of one that ends early: what was found to be there so far; all else would be computed. */
static inline struct usage prompt_usage(const struct prompt *p)
{
	return (struct usage){ .prompt = p->count, .hit = p->hit, .miss = p->count - p->hit };
}
/* Its next `rows` tokens as a segment; logits are wanted of the prompt's last.  name: the request's. */
struct segment prompt_segment(const struct prompt *p, size_t rows, uint64_t stream, const char *name);
/* What follows the step whose segment i was that of prompts[i], or of something else where that is NULL: MTP entries,
 * hidden states, prefixes to keep.  Overwrites what the step gave: sample first. */
int prompt_stepped(struct work *w, const struct segment *segs, struct prompt *const *prompts, size_t n,
	struct ds_err *err);
/* It is complete, and the model is still what it was (engine_check): its blocks go to the store.  Also those that are
 * kept in memory. */
void prompt_publish(struct work *w, struct prompt *p);
/* The first token of each of the request's choices, out [r->n], from the last segment of its prompt. */
int prompt_first(struct work *w, const struct request *r, const struct prompt *p, const struct segment *s,
	struct sampled *out, struct ds_err *err);

#endif

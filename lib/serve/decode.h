/*
 * The decode stage: requests with their KV blocks and first token in; tokens out, one frame each, until done.  Requests
 * of a stream whose HELLO says that it carries no KV are computed here, prompt and all.
 *
 * Requests join and leave between steps.  Places in a step go round by request, whatever the number of its choices; a
 * running choice has a token or a token and its drafts, and what is left of the budget goes to chunks of prompts, the
 * oldest first.  KV memory is given as sequences grow; where it runs out the last choice of the youngest is parked (its
 * blocks are copied to ordinary memory and come back later), so that the oldest always goes on.  Only a request that
 * all of the memory could not hold fails.
 */
#ifndef DS_SERVE_DECODE_H
#define DS_SERVE_DECODE_H

#include "serve/work.h"

enum {
	MTP_MOST = 8,
	MTP_PENDING = 16, /* hidden states that a choice keeps for the MTP layer while it takes steps without drafts */
};

struct decode;

struct decode_options {
	/* most choices in a step.  While so many requests are held, a source is read only until those that it has
	 * begun are complete. */
	size_t max_batch;
	size_t chunk;        /* most tokens of one prompt in a step */
	size_t drafts;       /* of the MTP layer for each token, at most MTP_MOST; 0: none */
	bool always;         /* even where it does not pay */
};

/* The work's max_rows is a step's budget, above max_batch and with drafts at least max_batch + MTP_PENDING; its
 * max_logits at least max_batch * (1 + drafts). */
int decode_new(struct decode **d, struct work *w, const struct decode_options *o, struct ds_err *err);
/* At the end of a run: says what speculation did. */
void decode_report(const struct decode *d);
void decode_free(struct decode *d);

extern const struct stage_ops decode_ops; /* ctx: struct decode */

#endif

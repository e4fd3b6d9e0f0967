/*
 * The prefill stage: request frames in; for each the request itself, its KV blocks and its first token out.
 *
 * Requests are taken in order; a step mixes chunks of several.  The frames of one request go out without a break, so
 * that a reader short of KV memory never waits for the rest of one while another stands in the way.
 */
#ifndef DS_SERVE_PREFILL_H
#define DS_SERVE_PREFILL_H

#include "serve/work.h"

struct prefill;

/* chunk: most tokens of one request in a step.  The work must outlive it. */
int prefill_new(struct prefill **p, struct work *w, size_t chunk, struct ds_err *err);
void prefill_free(struct prefill *p);

extern const struct stage_ops prefill_ops; /* ctx: struct prefill */

#endif

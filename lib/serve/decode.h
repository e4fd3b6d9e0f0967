/*
 * The decode stage: requests with their KV blocks and first token in; tokens out, one frame each, until done.
 *
 * All running requests take each step together.  KV memory is given as sequences grow; where it runs out the youngest
 * is parked (its blocks are copied to ordinary memory and come back later), so that the oldest always goes on.  Only a
 * request that all of the memory could not hold fails.
 */
#ifndef DS_SERVE_DECODE_H
#define DS_SERVE_DECODE_H

#include "serve/work.h"

struct decode;

/* max_batch: most requests decoded together.  While so many are held, a source is read only until the requests that it
 * has begun are complete. */
int decode_new(struct decode **d, struct work *w, size_t max_batch, struct ds_err *err);
void decode_free(struct decode *d);

extern const struct stage_ops decode_ops; /* ctx: struct decode */

#endif

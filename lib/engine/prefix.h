/*
 * Prefixes that were computed before: complete KV blocks of prompts, kept in the pool and found again by their tokens.
 *
 * A block's key is a hash chained over its parent's key and its 64 token ids; its tokens are compared, too, so that a
 * collision can never give wrong KV.  With MTP the token that follows the block is part of the key: the layer's entry
 * 63 depends on it.  Only blocks of prompts come here, computed in the expanded form: by law 2 they are the bits that
 * computing them again would give.  But for those that came from a store which decode wrote: `decoded` of a block says
 * how its rows were made, KV_BLOCK: all in the expanded form, else other bits.  Blocks of the same tokens made in
 * different ways are different blocks, and what was computed behind one does not go behind the other.
 *
 * When the pool has no other, the block goes that was given back longest ago, those without a continuation first;
 * finding it takes no longer with more of them.  Not thread-safe.
 */
#ifndef DS_ENGINE_PREFIX_H
#define DS_ENGINE_PREFIX_H

#include "engine/kv.h"

struct prefix_cache;

/* The pool must outlive it; no sequence has blocks of it any more when it ends.  mtp: blocks have the MTP layer's
 * entries, too. */
int prefix_new(struct prefix_cache **c, struct kv_pool *p, bool mtp, struct ds_err *err);
void prefix_free(struct prefix_cache *c);

/* Makes s begin with the longest run of kept blocks that ids begin with, at least one token being left to compute;
 * returns how many tokens they hold.  s has complete blocks only, made as decoded says, and perhaps room for more; the
 * run begins with those.  decoded [count / KV_BLOCK]: of blocks that are taken it is set; NULL: only blocks made by
 * prefill are. */
size_t prefix_take(struct prefix_cache *c, struct kv_seq *s, const uint32_t *ids, size_t count, uint8_t *decoded);
/* How many tokens prefix_take would find for an empty s, and how they were made. */
size_t prefix_find(const struct prefix_cache *c, const uint32_t *ids, size_t count, uint8_t *decoded);
/* Keeps those of the prompt's complete blocks that a further token follows; s holds that much of the prompt.  Blocks of
 * s that are kept already give way to those, so that a kept block in use has parents in use.  decoded as above, or
 * NULL: all were made by prefill. */
void prefix_keep(struct prefix_cache *c, struct kv_seq *s, const uint32_t *ids, size_t count, const uint8_t *decoded);
size_t prefix_blocks(const struct prefix_cache *c);

#endif

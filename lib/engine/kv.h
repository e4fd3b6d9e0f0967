/*
 * The paged latent KV cache: a pool of blocks of 64 tokens, and sequences as tables of blocks.
 *
 * A block is [layers][KV_BLOCK][dim] elements, dim = kv_lora + rope: per token and layer the latent after its norm,
 * then the rotated key part.  This is also the payload of a KV frame, so blocks go to and come from streams without a
 * copy. The pool's memory is reserved at once and touched as it is used.  Not thread-safe.
 *
 * Sequences may share blocks, which are then complete and written no more: a block is free when its last owner gives
 * it back.  A cache of prefixes may keep blocks that no sequence has: they count as available, and where no block is
 * free the cache is asked to let go of one.
 */
#ifndef DS_ENGINE_KV_H
#define DS_ENGINE_KV_H

#include <stdbool.h>

#include "base/err.h"
#include "base/tensor.h"

enum { KV_BLOCK = 64 };

struct kv_pool {
	enum dtype type;        /* DT_BF16 or DT_F32 */
	size_t layers, dim;
	size_t block_bytes;     /* layers * KV_BLOCK * dim * element size */
	size_t blocks, used;
	unsigned char *memory;  /* [blocks][block_bytes] */
	uint32_t *free;         /* stack of free block numbers, [blocks - used] of it valid */
	uint32_t *owners;       /* [blocks] */
	bool *kept;             /* [blocks] the cache is one of the owners */
	size_t idle;            /* blocks whose only owner is the cache */
	/* Of the cache, NULL: there is none.  Frees one idle block (there is one). */
	void (*reclaim)(void *ctx);
	void (*rest)(void *ctx, size_t n, bool idle); /* block n became idle, or is so no more */
	void *cache;
};

struct kv_seq {
	void **pages;           /* [count] blocks of a pool */
	size_t count, cap;
	size_t length;          /* tokens whose rows are in the cache */
	size_t mtp;             /* the same of the MTP layer, at most length */
};

/* As many blocks as fit in `bytes`, at least one (DS_CONFIG if not even one fits). */
int kv_pool_new(struct kv_pool **p, enum dtype type, size_t layers, size_t dim, uint64_t bytes, struct ds_err *err);
void kv_pool_free(struct kv_pool *p);
/* Blocks that sequences can have: free ones and idle ones. */
size_t kv_pool_available(const struct kv_pool *p);
static inline size_t kv_blocks_for(size_t tokens) { return (tokens + KV_BLOCK - 1) / KV_BLOCK; }

/* Grows s until it has room for `tokens` tokens.  False: the pool is empty or memory ran out; s keeps what it got. */
bool kv_seq_reserve(struct kv_seq *s, struct kv_pool *p, size_t tokens);
/* Gives back those behind the first `blocks`. */
void kv_seq_shrink(struct kv_seq *s, struct kv_pool *p, size_t blocks);
/* Gives all blocks back. */
void kv_seq_clear(struct kv_seq *s, struct kv_pool *p);
/* The cache becomes an owner of a sequence's block, and lets go of it. */
void kv_block_keep(struct kv_pool *p, void *block);
void kv_block_drop(struct kv_pool *p, void *block);
size_t kv_block_number(const struct kv_pool *p, const void *block);
/* Adds a complete block that another owner holds, too, to s.  False: no memory. */
bool kv_seq_share(struct kv_seq *s, struct kv_pool *p, void *block);
/* The same bytes in another owner's block instead of block n of s. */
void kv_seq_replace(struct kv_seq *s, struct kv_pool *p, size_t n, void *block);
/* Makes s, which is empty, begin as `from` up to `length` tokens, with a copy of the block in which they end and the
 * blocks before it shared.  That block is copied even if it is full: MTP entry length - 1 depends on what follows.
 * False: no room, s is empty. */
bool kv_seq_fork(struct kv_seq *s, const struct kv_seq *from, size_t length, struct kv_pool *p);

/* The rows of the first `tokens` tokens, at most those s has, are numbers; false: not this layer's of this token. */
bool kv_seq_finite(const struct kv_seq *s, const struct kv_pool *p, size_t tokens, size_t *layer, size_t *token);

/*
 * Parking: the blocks' contents move to ordinary memory and the blocks become free; and back (false: no room now).  The
 * first `skip` blocks, fewer than s has in use, are not copied: sequences that share them keep one copy for all.  They
 * come back from a sequence in blocks that begins with them, or where there is none (NULL) from that copy.
 */
struct kv_parked {
	unsigned char *bytes;   /* of blocks skip .. blocks; NULL: nothing is parked */
	bool borrowed;          /* they are someone else's */
	size_t skip, blocks, length, mtp;
};
void kv_parked_free(struct kv_parked *k);
/* The contents of blocks [first, first + n) of s, for free(); NULL: no memory. */
unsigned char *kv_seq_copy(const struct kv_seq *s, const struct kv_pool *p, size_t first, size_t n);
bool kv_seq_park(struct kv_seq *s, struct kv_pool *p, size_t skip, struct kv_parked *out);
bool kv_seq_unpark(struct kv_seq *s, struct kv_pool *p, struct kv_parked *in, const struct kv_seq *from,
	const unsigned char *copy);
/* Blocks that unparking takes. */
static inline size_t kv_parked_blocks(const struct kv_parked *in, bool from)
{
	return in->blocks - (from ? in->skip : 0);
}

#endif

/*
 * KV blocks as items of a store: their keys, what their meta says, the form in which they are stored.
 *
 * A key is the first half of SHA-256 over the key of the block before it, the token ids, and how the rows were made;
 * the first block's predecessor stands for the model and the layout.  So equal keys mean equal bits (DESIGN section 7):
 * prompts come from anybody, who must not be able to make two that share a key, which a faster hash would let them.
 * block_check compares all but the blocks further ahead when a block is about to be used, so that neither a stale
 * layout nor a damaged or misplaced item can give wrong KV.
 *
 * Rows of a prompt are made by prefill's arithmetic (expanded attention), those of generated tokens by decode's
 * (absorbed): other bits.  `decoded` says from which token of the block on rows are decode's.
 */
#ifndef DS_STORE_BLOCK_H
#define DS_STORE_BLOCK_H

#include "store/item.h"

enum { BLOCK_TOKENS_MAX = 1024 }; /* of a block */

enum block_form {
	BLOCK_EXACT, /* as in memory */
	BLOCK_FP8,   /* latents in E4M3 with a float32 scale for each 128, the rotated part as in memory: as FlashMLA's
	              * FP8 KV cache, 656 bytes a token and layer of V3 */
};

struct block_layout {
	char model[80];      /* fingerprint */
	char arith[32];      /* hello's quant: arithmetic that the bits depend on */
	char kernels[32];    /* and the kernel set */
	enum dtype type;     /* of a row's elements in memory: DT_BF16 or DT_F32 */
	uint64_t layers;     /* with those of MTP */
	uint64_t mtp;        /* of them: then a block's last rows depend on the token that follows it */
	uint64_t latent, rope; /* elements of a row: kv_lora_rank, qk_rope_head_dim */
	uint64_t tokens;     /* of a block */
	enum block_form form;
};

/* decoded is the block's tokens where none of its rows is decode's, and one more where only the MTP layer's entry of
 * its last token is: where a prompt ends with the block, decode makes that one, since it depends on the token that
 * follows. */
struct block_id {
	struct store_key parent; /* of the first block: block_root */
	const uint32_t *ids;     /* [tokens], with mtp [tokens + 1] */
	uint64_t first;          /* position of the block's first token */
	uint64_t decoded;        /* the first row of decode's */
};

struct store_key block_root(const struct block_layout *l);
struct store_key block_key(const struct block_layout *l, const struct block_id *id);
/* Bytes in memory [layers, tokens, latent + rope], and as stored; false: too many. */
bool block_sizes(const struct block_layout *l, size_t *memory, size_t *stored);

/* What an item's meta says of the block; its payload is tensor "kv" and, in form FP8, "scale" and "rope". */
void block_meta_put(struct meta_builder *b, const struct block_layout *l, const struct block_id *id);
/* The item is this block, to the last token: 0; else DS_NO and what differs. */
int block_check(const struct store_item *item, const struct block_layout *l, const struct block_id *id,
	struct ds_err *err);

/* No row has a NaN or an infinity: such blocks are neither stored nor used.  memory [layers, tokens, latent + rope] */
bool block_finite(const struct block_layout *l, const void *memory);
/* Form FP8: where scales and rotated parts lie among the stored bytes, behind the codes; scales of a row. */
void block_parts(const struct block_layout *l, size_t *scale, size_t *rope);
static inline size_t block_groups(const struct block_layout *l)
{
	return (size_t)((l->latent + FP8_BLOCK - 1) / FP8_BLOCK);
}
/* Form FP8: memory [layers, tokens, latent + rope] to stored bytes and back.  NaN and infinities: false, they are not
 * stored. */
bool block_pack(const struct block_layout *l, const void *memory, void *stored);
void block_unpack(const struct block_layout *l, const void *stored, void *memory);

#endif

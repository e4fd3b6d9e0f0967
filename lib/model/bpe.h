/*
 * Byte-pair merging: bytes become tokens, then the adjacent pair with the lowest rank is merged (the leftmost of
 * equals) until no pair has a rank.  O(n log n) in the length of a piece.  A table is read-only once filled; each
 * thread needs its own bpe_work.
 */
#ifndef DS_MODEL_BPE_H
#define DS_MODEL_BPE_H

#include "model/tokenizer.h"

struct bpe_pair { uint64_t key; uint32_t rank, id; }; /* key: left id in the upper half, right id in the lower */

struct bpe {
	uint32_t byte_id[256];
	struct bpe_pair *pairs; /* open addressing, [mask + 1] */
	size_t mask;
};

struct bpe_symbol { uint32_t id, prev, next; };
struct bpe_cand { uint32_t rank, at, left, right; };

struct bpe_work {
	struct bpe_symbol *symbols;
	struct bpe_cand *heap;
	size_t cap;
};

/* Room for `merges` pairs; DS_OS. */
int bpe_init(struct bpe *b, size_t merges, struct ds_err *err);
/* left + right become id; a pair given twice keeps its last rank.  At most `merges` calls. */
void bpe_put(struct bpe *b, uint32_t left, uint32_t right, uint32_t rank, uint32_t id);
void bpe_free(struct bpe *b);

/* Appends the tokens of p[0 .. n); DS_OS without memory, DS_DATA for a piece over 1 GiB. */
int bpe_encode(const struct bpe *b, struct bpe_work *w, const char *p, size_t n, struct ids *out, struct ds_err *err);
void bpe_work_free(struct bpe_work *w);

#endif

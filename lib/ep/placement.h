/*
 * Which rank holds which copies of which experts, layer by layer.
 *
 * Logical experts are the model's; physical ones are copies of them, one or more each, spread over the ranks of a unit
 * (DeepSeek-V3, 3.4: 256 + 32 over 32 ranks, 9 each, in prefill; over 144 ranks, 2 each, in decode).  Where copies do
 * not divide evenly ranks differ by one.
 */
#ifndef DS_EP_PLACEMENT_H
#define DS_EP_PLACEMENT_H

#include "base/err.h"
#include "ep/ranks.h"

#define EP_NONE UINT32_MAX /* a slot without an expert; a choice without one */

struct placement_layer {
	uint32_t *logical;    /* [slots] by physical expert; ranks' slots follow one another; never EP_NONE */
	uint32_t *first;      /* [world + 1] first physical expert of each rank */
	uint32_t *copies;     /* [experts + 1] first entry of each logical expert in copy */
	uint32_t *copy;       /* [slots] physical experts, sorted by logical expert, then by rank */
	uint32_t *rank;       /* [slots] by physical expert */
	float *weight;        /* [slots] share of its logical expert's tokens, > 0; adds up to 1 over the copies */
	size_t slots;
};

struct placement {
	size_t layers, experts, world;
	struct placement_layer *layer; /* [layers]: MoE layers only, in order */
};

/* experts + redundant copies in blocks: rank r of `world` has the r-th; copy experts + i is of expert i modulo experts.
 * DS_CONFIG where a rank would have no slot, DS_OS. */
int placement_default(struct placement **p, size_t layers, size_t experts, size_t redundant, size_t world,
	struct ds_err *err);
/* map [layers, world * slots]: logical experts of each rank's slots, EP_NONE: an empty one.  weight [layers, world *
 * slots] or NULL (equal shares).  DS_DATA names layer and expert where one has no copy, an id is out of range, a weight
 * is not finite and positive; DS_OS. */
int placement_from_map(struct placement **p, size_t layers, size_t experts, size_t world, size_t slots,
	const uint32_t *map, const float *weight, struct ds_err *err);
/* The placement that remains when only these ranks are there: their copies stay where they are, experts that have none
 * left go, in order, to the member with the fewest slots in that layer (the lowest in ties); shares of lost copies go
 * to the others in proportion.  All members compute the same.  DS_BUG where none of the world is there; DS_OS. */
int placement_without(struct placement **p, const struct placement *whole, const struct ranks *members,
	struct ds_err *err);
void placement_free(struct placement *p); /* NULL: nothing happens */

/*
 * The physical expert for every (token, choice) of one rank's batch: the copies of an expert take its tokens in
 * proportion to their weights, within one token of it at every moment (of those not ahead of their share the copy whose
 * next token is due first).  start, the rank, says which copy has the first token, so that ranks with one token each
 * together keep the proportion too.  Depends on its arguments alone.
 * ids, chosen [n] (rows * top_k); EP_NONE stays.  counts: working memory, [slots], zeroed by the callee as needed.
 */
void placement_choose(const struct placement_layer *l, size_t start, const uint32_t *ids, size_t n, uint32_t *chosen,
	uint32_t *counts);

#endif

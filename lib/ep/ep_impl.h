/* What ep.c and exchange.c share. */
#ifndef DS_EP_EP_IMPL_H
#define DS_EP_EP_IMPL_H

#include "ep/ep.h"
#include "ep/load.h"
#include "ep/plan.h"

/* What a lane's round has come to: the only order in which its calls are legal. */
enum lane_state { LANE_FREE, LANE_DISPATCHED, LANE_POSTED, LANE_ARRIVED, LANE_RETURNED };

/* One micro-batch's round on its way.  T = tokens, K = top_k, W = world. */
struct exchange {
	enum lane_state state;
	size_t layer, round;        /* this layer's, from 0 */
	uint64_t seq;               /* of its dispatch; its combine's is seq_back */
	uint64_t seq_back;
	const struct placement_layer *place;
	struct ranks active;        /* who has rows in this round */
	size_t rows, row_bytes;     /* this rank's */

	/* going: per rank of the unit, and per (token, choice) */
	uint32_t *tokens_to, *pairs_to; /* [W] */
	unsigned char **message;    /* [W] the slot that is being filled */
	uint32_t *filled;           /* [W] */
	uint32_t *chosen;           /* [T, K] physical expert */
	uint32_t *index;            /* [T, K] number of the pair in its message */
	uint32_t *copy_row;         /* [T * min(K, W)] */
	void **copy_dst;            /* [T * min(K, W)] */
	const void **out;           /* [T, K] */

	/* coming */
	const void **src;           /* [W * T] */
	uint32_t *first;            /* [slots + 2], within ep.counts */
	uint32_t *gather;           /* [W * T * K] */
	void **back;                /* [W * T * K] */
	size_t pairs;
	uint32_t *pairs_from;       /* [W] */

	struct ep_span span[SLOT_KINDS];
};

struct ep {
	struct ep_config c;
	struct unit *unit;
	struct unit_round step;
	size_t rounds[EP_LANES];
	struct placement *whole, *place; /* of all ranks, of those that are there */
	uint64_t plan, number;      /* the plan in effect: the unit's name for it, and its own number */
	struct load *load;
	bool stepping, broken;      /* a step is to be counted, or was broken off */
	uint32_t *counts;           /* [slots] for placement_choose, and what follows it */
	struct exchange x[EP_LANES];
	unsigned char *memory;      /* of both x; one mapping, touched as used */
	size_t memory_bytes;
};

/* Most bytes of a message of dispatch and of combine. */
size_t exchange_dispatch_bytes(const struct ep_config *c);
size_t exchange_combine_bytes(const struct ep_config *c);
int exchange_reserve(struct ep *ep, struct ds_err *err);
/* Room for the experts of this placement; nothing is on its way. */
int exchange_place(struct ep *ep, const struct placement *p, struct ds_err *err);
/* The next step's: nothing is on its way. */
void exchange_reset(struct ep *ep);

#endif

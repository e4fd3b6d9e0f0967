/*
 * Expert parallelism as the engine sees it: steps that all ranks take together, and within them dispatch and combine of
 * rows, start and finish apart.
 *
 * ep moves no tensor.  It says where rows go and where they are; kernels copy (kern_put_rows, kern_take_rows,
 * kern_combine_rows), so that on a device they stay on the device.
 *
 * A step:  ep_begin, then for every MoE layer, every lane and every round of it
 *   ep_dispatch        where each row goes, once for every rank that has an expert of it
 *   ep_dispatch_post   the rows are written: they leave
 *   ep_arrive          waits; the rows that came, and which expert wants which of them
 *   ep_return          where the experts' output rows go
 *   ep_return_post     they are written: they leave
 *   ep_collect         waits; where the rows of each (token, choice) are
 * In between the engine computes what does not depend on it.  Every call that waits may give EP_BROKEN: the membership
 * has changed, and the step is begun again with ep_begin.
 *
 * Rounds: a rank sends at most `tokens` rows at a time; a step takes as many rounds as the largest batch of any rank
 * needs, the same on all.
 */
#ifndef DS_EP_EP_H
#define DS_EP_EP_H

#include "ep/placement.h"
#include "ep/unit.h"
#include "frame/messages_unit.h"

struct ep;

struct ep_shape {
	size_t layers;      /* MoE layers, the MTP layer's the last where it is used */
	size_t first;       /* the first one's number in the model */
	size_t experts, top_k;
	size_t row_bytes;   /* most of a dispatched token */
	size_t out_bytes;   /* of an expert's output row */
};

struct ep_config {
	struct unit_config unit;  /* ops, ctx and bytes are filled in here, terms added */
	struct ep_shape shape;
	size_t redundant;
	size_t tokens;            /* of a rank and lane in a round */
};

/* Meets the unit (unit_open). */
int ep_open(struct ep **ep, const struct ep_config *c, struct ds_err *err);
void ep_close(struct ep *ep);
struct unit *ep_unit(struct ep *ep); /* for what it says of itself */
/* True where nothing asks this rank to take part: then it may sleep until ep_bell_fd is readable; false: awake. */
bool ep_park(struct ep *ep, bool on);
void ep_linger(struct ep *ep); /* before that, after a step of others: the next is likely to come soon */
int ep_bell_fd(const struct ep *ep);
size_t ep_tokens(const struct ep *ep); /* of a rank and lane in a round */
size_t ep_world(const struct ep *ep);

/* Offers a plan frame to all ranks: it takes effect between two steps.  Between steps, so that what is in effect is
 * known: *number is the frame's, and where it is not greater than ep_plan_number nothing is offered and *id is 0.
 * DS_DATA, DS_PROTO: it is not for this unit. */
int ep_plan(struct ep *ep, const struct frame *f, uint64_t *id, uint64_t *number, struct ds_err *err);
uint64_t ep_plan_number(const struct ep *ep); /* of the plan in effect; 0: the placement that the unit began with */
/* What was counted since the last call, of complete steps; to be called between steps.  Valid until the next call. */
void ep_load(struct ep *ep, struct load_message *m);

/* What a step will be: lanes, and rounds of each. */
struct ep_step { enum unit_kind kind; size_t lanes, rounds[EP_LANES]; bool over; };
int ep_begin(struct ep *ep, enum unit_kind want, const size_t rows[EP_LANES], bool ended, struct ep_step *step,
	struct ds_err *err);

/* Where rows of a batch go: row row[i] to dst[i], i < n. */
struct ep_rows { size_t n; const uint32_t *row; void *const *dst; };

/* ids [rows, top_k] of this round's rows (EP_NONE: no expert); rows <= tokens, else DS_BUG with both numbers.  layer:
 * among the MoE layers; row_bytes: of its rows.  *to is valid until the next ep_dispatch of this lane.  At most one
 * round of a lane is on its way, else DS_BUG. */
int ep_dispatch(struct ep *ep, size_t lane, size_t layer, size_t row_bytes, const uint32_t *ids, size_t rows,
	struct ep_rows *to, struct ds_err *err);
void ep_dispatch_post(struct ep *ep, size_t lane);

/* What came: `rows` tokens at src[], and pairs of (expert, token) sorted by this rank's physical expert, then by source
 * rank, then by token there. */
struct ep_arrived {
	size_t rows;
	const void *const *src;     /* [rows] */
	size_t experts;             /* of this rank in this layer */
	const uint32_t *logical;    /* [experts] */
	const uint32_t *first;      /* [experts + 1] first pair of each */
	const uint32_t *gather;     /* [pairs] row of src */
	size_t pairs;
};
/* DS_PROTO: a message that makes no sense, by rank. */
int ep_arrive(struct ep *ep, size_t lane, struct ep_arrived *a, struct ds_err *err);

/* dst[i]: where the output row of pair i goes, [pairs]. */
void *const *ep_return(struct ep *ep, size_t lane);
void ep_return_post(struct ep *ep, size_t lane);
/* rows[i]: where the output of (token, choice) i of this round is, NULL: it had no expert.  [rows, top_k] */
int ep_collect(struct ep *ep, size_t lane, const void *const **rows, struct ds_err *err);

/* For spans: a transfer of a lane, from its post to when the last message that was waited for was there; bytes: what
 * this rank sent to others. */
struct ep_span { int64_t begin, end; size_t bytes; };
struct ep_span ep_span(const struct ep *ep, size_t lane, enum slot_kind kind);

#endif

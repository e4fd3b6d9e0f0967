/*
 * Plans: placements that come from outside, as frames, and go from the rank that read one to the others of its unit.
 */
#ifndef DS_EP_PLAN_H
#define DS_EP_PLAN_H

#include "ep/placement.h"
#include "frame/frame.h"

/* What a plan must be for. */
struct plan_shape { size_t layers, experts, world; };

/* The placement that a plan frame says, and the plan's number.  DS_DATA: wrong in itself, or its payload is damaged;
 * DS_PROTO: for another model or another world, with both values; DS_OS. */
int plan_placement(const struct frame *f, const struct plan_shape *shape, struct placement **p, uint64_t *epoch,
	struct ds_err *err);

/* The frame as plain bytes, to be sent; the caller's to free.  DS_DATA where they are more than PLAN_MOST_BYTES;
 * DS_OS. */
enum { PLAN_MOST_BYTES = 32 << 20 };
int plan_pack(const struct frame *f, void **bytes, size_t *n, struct ds_err *err);
/* As plan_placement, of such bytes, at any alignment; errors name the frame by its number where it was read. */
int plan_unpack(const void *bytes, size_t n, const struct plan_shape *shape, struct placement **p, uint64_t *epoch,
	struct ds_err *err);

#endif

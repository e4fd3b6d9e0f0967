/*
 * What ranks of an expert-parallel unit say about their load, and what they are told about where experts are to lie:
 * typed forms of load and plan frames.  ds-frame(5) is the reference for the keys.
 */
#ifndef DS_FRAME_MESSAGES_UNIT_H
#define DS_FRAME_MESSAGES_UNIT_H

#include "frame/frame.h"

enum { UNIT_MESSAGE_RANKS = 16384, UNIT_MESSAGE_EXPERTS = 65536 }; /* at most, in either */

/* plan: which experts each rank has, layer by layer. */
struct plan_message {
	uint64_t epoch;           /* the plan's number: of two plans the greater is the later */
	uint64_t layers, experts, ranks, slots; /* slots of each rank in each layer */
	const int32_t *placement; /* [layers, ranks, slots] logical experts, -1: the slot is empty */
	const float *weights;     /* [layers, ranks, slots] to be made shares of each expert's tokens; NULL: equal */
};
/* With a payload hash.  b: working memory; DS_BUG where a tensor would be more than 1 GiB, DS_IO. */
int plan_write(struct frame_writer *w, struct meta_builder *b, const struct plan_message *p, struct ds_err *err);
/* Checks sizes, ids, weights, and that every expert has a slot in every layer: DS_DATA says where not.  The arrays are
 * the frame's. */
int plan_get(const struct frame *f, struct plan_message *p, struct ds_err *err);

/* load: what a rank did since its last load frame. */
struct load_peer { uint64_t sent_bytes, received_bytes, waited_ns; };
struct load_message {
	uint64_t rank, world;
	uint64_t epoch;           /* of the unit's membership */
	uint64_t plan;            /* number of the plan in effect; 0: the placement that the unit began with */
	uint64_t t_ns;            /* wall clock at the end of the interval */
	uint64_t interval_ns;
	uint64_t steps, rows;     /* steps of the unit, and this rank's own tokens in them */
	uint64_t layer;           /* number in the model of the first that follows */
	uint64_t layers, experts;
	const int64_t *counts;    /* [layers, experts] own tokens that chose each logical expert */
	const int64_t *received;  /* [layers, experts] rows that this rank computed for each */
	const struct load_peer *peers; /* [world], to be written; what is read is at load_peer_at */
};
/* Droppable, with a payload hash.  b: working memory; DS_BUG where a tensor would be more than 1 GiB, DS_IO. */
int load_write(struct frame_writer *w, struct meta_builder *b, const struct load_message *m, struct ds_err *err);
/* DS_DATA.  The arrays are the frame's. */
int load_get(const struct frame *f, struct load_message *m, struct ds_err *err);
struct load_peer load_peer_at(const struct frame *f, size_t peer); /* of a checked frame, peer < world */

#endif

/*
 * What a rank counts for its load frames: how many of its tokens chose which expert, how many rows it computed for
 * whom, what went to and came from each peer, and how long it waited for it.
 *
 * A step that is broken off and begun again must not count twice: counts of a step are put aside until load_step.  One
 * thread calls.
 */
#ifndef DS_EP_LOAD_H
#define DS_EP_LOAD_H

#include "ep/transport.h"
#include "frame/messages_unit.h"

struct load;

struct load_config {
	size_t rank, world;
	size_t layer;             /* number in the model of the first MoE layer */
	size_t layers, experts;
};

/* DS_OS. */
int load_new(struct load **l, const struct load_config *c, struct ds_err *err);
void load_free(struct load *l); /* NULL: nothing happens */

/* ids [n]: experts chosen by tokens of this rank in a layer (0: the first MoE layer); EP_NONE is not counted. */
void load_count(struct load *l, size_t layer, const uint32_t *ids, size_t n);
/* This rank computed so many rows for a logical expert, whoever's they were. */
void load_received(struct load *l, size_t layer, size_t expert, size_t rows);
/* A step of the unit is complete, with so many tokens of this rank: what was counted in it counts. */
void load_step(struct load *l, size_t rows);
/* A step was broken off: what was counted in it does not count. */
void load_undo(struct load *l);
/* What a peer's figures are by now, as transport_stat gives them; where one is smaller than it was they began anew. */
void load_peer(struct load *l, size_t peer, const struct transport_peer *total);

/* What has been counted since the last call (or load_new), to be written with load_write: valid until the next call. */
void load_take(struct load *l, uint64_t epoch, uint64_t plan, struct load_message *m);

#endif

/*
 * What the files of a ranked stage share.
 *
 *   ranked.c        meeting, steps, plans, the end
 *   ranked_aside.c  what waits for others meanwhile
 *   ranked_load.c   load frames and when they are due
 */
#ifndef DS_SERVE_RANKED_IMPL_H
#define DS_SERVE_RANKED_IMPL_H

#include "ep/ep.h"
#include "serve/beside.h"
#include "serve/ranked.h"

struct ranked {
	struct ep *ep;
	size_t rank, world;
	uint64_t planned, offered; /* the last plan that took effect, and that came in here */
	/* loads */
	const struct unit_options *o;
	struct source *src;      /* of --loads: whose answers they stand between, NULL: no more */
	struct beside to;        /* of --loads-to */
	bool to_open, to_failed;
	struct meta_builder *meta;
	int watch, timer;        /* an epoll of the unit's bell and of a timer, -1: no loads */
	bool armed;
};

/* Makes what wakes the stage when a frame is due. */
int loads_new(struct ranked *r, struct ds_err *err);
int loads_open(struct work *w, const struct stage_config *stage, struct ds_err *err);
/* After steps; worked: something was counted. */
void loads_step(struct ranked *r, bool worked);
void loads_last(struct ranked *r); /* whatever was counted, now */
int loads_close(struct ranked *r, struct ds_err *err);
void loads_free(struct ranked *r);

#endif

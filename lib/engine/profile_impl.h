/* What the files of the profile share. */
#ifndef DS_ENGINE_PROFILE_IMPL_H
#define DS_ENGINE_PROFILE_IMPL_H

#include "base/trace.h"
#include "engine/profile.h"

enum { DEPTH = 4, LANE_STAGES = 1, LANE_THREADS = 2, LANE_TRANSFERS = 2000 }; /* 0: the idle task, to some viewers */

struct open_stage {
	enum stage_id stage;
	size_t layer, rows;
	int64_t begin, within; /* within: time of stages inside of it */
	struct stage_sum sum;
};

struct profile {
	void (*add)(void *ctx, struct buf *text, struct jw *json); /* profile_add, or NULL */
	void *add_ctx;
	struct profile_options o;
	struct trace *trace;
	struct kern_stream *s;
	const struct kv_pool *pool;
	bool round;
	int64_t began, step;
	bool draft;
	uint64_t step_number; /* from 0, as the engine counts for taps; a draft has that of the next step */
	size_t step_rows, step_segs;
	int lane;             /* micro-batch, or -1 */
	bool lanes_named[2];  /* of transfers, in the trace */
	struct open_stage open[DEPTH];
	size_t depth;
	struct stage_sum elsewhere; /* asked for outside of any stage */
	struct profile_sums sums;
};

/* The statistics, to stderr. */
void profile_print(const struct profile *p);

#endif

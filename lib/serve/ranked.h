/*
 * A stage that is a rank of an expert-parallel unit: meeting the others, taking part when there is nothing to do here,
 * plans, loads.
 */
#ifndef DS_SERVE_RANKED_H
#define DS_SERVE_RANKED_H

#include "base/json.h"
#include "serve/work.h"

struct ranked;

/* Meets the unit that o->unit names.  The model is open; c: the engine's configuration, whose ep is set.  role: ranks
 * of another are refused.  Errors as unit_open. */
int ranked_open(struct work *w, const struct work_options *o, bool anywhere, const char *role, struct engine_config *c,
	struct ds_err *err);
void ranked_close(struct work *w); /* leaves the unit; after engine_free */
void ranked_hello(const struct work *w, struct hello *h); /* rank and world */

/* ---- for stages; nothing of this does anything without a unit ---- */

/* What a step ends with: where there was nothing to do, a step of the others', if they want one. */
int ranked_step(struct work *w, bool *busy, struct ds_err *err);
int ranked_bell(const struct work *w); /* stage_ops.bell */
/* fn, which may wait for others: meanwhile the rank takes part.  stage_ops.aside. */
int ranked_aside(struct work *w, int (*fn)(void *arg, struct ds_err *err), void *arg, struct ds_err *err);
/* A frame that is for the unit: a plan.  *taken: it was. */
int ranked_frame(struct work *w, struct source *src, const struct frame *f, bool *taken, struct ds_err *err);
void ranked_state(const struct work *w, struct jw *out); /* of stage_ops.state: a key "unit" */
void ranked_ending(struct work *w, struct source *src); /* stage_ops.ending */
void ranked_gone(struct work *w, const struct source *src); /* of stage_ops.gone */

/* ---- around the run ---- */

/* Where --loads-to goes. */
int ranked_begin(struct work *w, const struct stage_config *stage, struct ds_err *err);
/* After this rank's run, whose result is rc: a filter that has done its work takes part until all have.  Returns rc, or
 * where it is 0 what went wrong meanwhile. */
int ranked_finish(struct work *w, const struct stage_config *stage, int rc, struct ds_err *err);

#endif

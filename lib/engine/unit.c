/* Steps of a unit: with rows of this rank's own, or with nothing but its experts. */
#include <errno.h>
#include <poll.h>

#include "engine/internal.h"

void engine_ep_shape(const struct model *m, const struct engine_config *c, struct ep_shape *shape)
{
	/* enough of an engine to ask how products read activations */
	struct engine e = { .c = &m->config, .round = c->arith == ARITH_BF16, .dequant = c->dequant };

	*shape = (struct ep_shape){ .experts = m->config.experts, .top_k = m->config.top_k };
	shape->out_bytes = kern_row_bytes(lane_way_back(&e), m->config.hidden);
	for (size_t n = 0; n < m->config.layers + (c->mtp ? 1 : 0); n++) {
		const struct layer *l = n < m->config.layers ? &m->layers[n] : &m->mtp[0].layer;
		size_t bytes;

		if (!l->moe)
			continue;
		if (!shape->layers)
			shape->first = n;
		bytes = kern_row_bytes(lane_way_out(&e, l), m->config.hidden);
		shape->layers++;
		shape->row_bytes = bytes > shape->row_bytes ? bytes : shape->row_bytes;
	}
}

/* Takes part with nothing of one's own. */
static int attend(struct engine *e, const struct ep_step *step, struct ds_err *err)
{
	lanes_fill(e, NULL, 0, step);
	return step->kind == UNIT_MTP ? schedule_mtp(e, err) : schedule_run(e, step->lanes, err);
}

int engine_unit_step(struct engine *e, struct unit_work *w, struct ds_err *err)
{
	struct ep_step step;
	bool done = false;
	int rc = 0;

	while (!done && !rc) {
		profile_begin(e->profile, STAGE_VOTE, SIZE_MAX, w->b->rows);
		rc = ep_begin(e->ep, w->kind, w->rows, false, &step, err);
		profile_end(e->profile);
		if (rc)
			break;
		rc = step.kind == w->kind ? w->run(e, w, &step, err) : attend(e, &step, err);
		profile_micro_batch(e->profile, -1);
		done = !rc && step.kind == w->kind;
		if (rc == EP_BROKEN)
			rc = 0;
	}
	return rc;
}

/* A vote for nothing, and what others want. */
static int take_part(struct engine *e, bool ended, bool *over, struct ds_err *err)
{
	static const size_t none[EP_LANES];
	struct ep_step step;
	int rc;

	ep_park(e->ep, false);
	rc = ep_begin(e->ep, UNIT_NONE, none, ended, &step, err);
	*over = !rc && step.over;
	if (rc || step.over || step.kind == UNIT_NONE)
		return rc;
	profile_step_begin(e->profile, step.kind == UNIT_MTP, 0, 0);
	rc = attend(e, &step, err);
	profile_micro_batch(e->profile, -1);
	profile_step_end(e->profile);
	e->attended = true;
	return rc == EP_BROKEN ? 0 : rc;
}

/* True where nothing is asked of this rank.  Steps of others come one after the other: sleep and waking up in between
 * would cost them more than a look around. */
static bool may_sleep(struct engine *e)
{
	if (e->attended)
		ep_linger(e->ep);
	e->attended = false;
	return ep_park(e->ep, true);
}

int engine_attend(struct engine *e, bool *busy, struct ds_err *err)
{
	bool over;

	*busy = !may_sleep(e);
	return *busy ? take_part(e, false, &over, err) : 0;
}

int engine_stay_step(struct engine *e, bool *busy, bool *over, struct ds_err *err)
{
	*over = false;
	*busy = !e->ended || !may_sleep(e);
	e->ended = true;
	return *busy ? take_part(e, true, over, err) : 0;
}

int engine_stay(struct engine *e, struct ds_err *err)
{
	struct pollfd bell = { .fd = ep_bell_fd(e->ep), .events = POLLIN };
	bool busy, over = false;
	int rc = 0;

	while (!rc && !over) {
		rc = engine_stay_step(e, &busy, &over, err);
		if (!rc && !busy && poll(&bell, 1, -1) < 0 && errno != EINTR)
			rc = err_errno(err, DS_OS, "cannot poll");
	}
	return rc;
}

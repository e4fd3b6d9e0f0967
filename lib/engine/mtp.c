/* The MTP layer: drafts of the token after the next one. */
#include <string.h>

#include "engine/internal.h"

/* The residual stream that the layer begins with, from the embeddings in e->h and the segments' hidden states. */
static void join(struct engine *e, const struct mtp_layer *p, struct batch *b)
{
	size_t hidden = e->c->hidden, row = 0;

	kern_rmsnorm(e->s, e->eh, 2 * hidden, e->h, hidden, &p->enorm, (float)e->c->eps, b->rows, hidden, e->round);
	for (size_t i = 0; i < b->count; i++) {
		const struct segment *s = &b->segs[i];

		kern_rmsnorm(e->s, e->eh + (2 * row + 1) * hidden, 2 * hidden, s->h, hidden, &p->hnorm,
			(float)e->c->eps, s->rows, hidden, e->round);
		row += s->rows;
	}
	engine_linear(e, e->h, e->eh, &p->eh_proj, b->rows, e->packed, e->round);
}

/* Goes on with the rows whose logits are wanted: a layer's cache depends on its input alone. */
static void narrow(struct engine *e, struct batch *b)
{
	size_t hidden = e->c->hidden, ldq = e->c->heads * (e->c->nope + e->c->rope), row = 0, n = 0;

	for (size_t i = 0; i < b->count; i++) {
		struct segment *s = &b->segs[i];
		size_t skip = s->rows - s->want_logits;

		row += skip;
		memmove(e->h + n * hidden, e->h + row * hidden, s->want_logits * hidden * sizeof(float));
		memmove(e->q + n * ldq, e->q + row * ldq, s->want_logits * ldq * sizeof(float));
		row += s->want_logits;
		n += s->want_logits;
		s->kv->mtp += skip;
		s->rows = s->want_logits;
	}
	b->rows = n;
}

/* e->eh, which is not needed any more, keeps what the layer begins with, for the case that it begins again. */
static int run_in_unit(struct engine *e, struct unit_work *w, const struct ep_step *step, struct ds_err *err)
{
	memcpy(e->h, e->eh, w->b->rows * e->c->hidden * sizeof(*e->h));
	lanes_fill(e, w->b, w->b->rows, step);
	return schedule_mtp(e, err);
}

static int layer(struct engine *e, const struct mtp_layer *p, struct batch *b, struct ds_err *err)
{
	struct unit_work w = { .kind = UNIT_MTP, .rows = { b->rows }, .run = run_in_unit, .b = b };

	if (!e->ep || !p->layer.moe) {
		engine_layer(e, &p->layer, e->c->layers, b);
		return 0;
	}
	memcpy(e->eh, e->h, b->rows * e->c->hidden * sizeof(*e->h));
	return engine_unit_step(e, &w, err);
}

int engine_mtp(struct engine *e, struct segment *segs, size_t count, struct ds_err *err)
{
	const struct mtp_layer *p = e->m->mtp;
	struct batch b = { .segs = segs, .count = count, .mtp = true };
	int rc = engine_begin(e, &b, err);

	if (rc || !b.rows)
		return rc;
	profile_step_begin(e->profile, true, b.rows, count);
	engine_embed(e, &p->embed, &b);
	profile_begin(e->profile, STAGE_MTP, e->c->layers, b.rows);
	join(e, p, &b);
	profile_end(e->profile);
	engine_cache(e, &p->layer, e->c->layers, &b);
	if (b.logits) {
		narrow(e, &b);
		rc = layer(e, p, &b, err);
		if (rc)
			return rc;
		engine_head(e, &p->norm, &p->head, &b);
	}
	profile_step_end(e->profile);
	e->unchecked = true;
	for (size_t i = 0; i < count; i++)
		segs[i].kv->mtp += segs[i].rows;
	return 0;
}

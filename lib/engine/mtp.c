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

/* A layer's cache depends on its input alone. */
static void fill_cache(struct engine *e, const struct layer *l, struct batch *b)
{
	profile_begin(e->profile, STAGE_ATTN0, e->c->layers, b->rows);
	stage_attn0(e, l, e->c->layers, b);
	profile_end(e->profile);
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
	if (b.logits) {
		engine_layer(e, &p->layer, e->c->layers, &b);
		engine_head(e, &p->norm, &p->head, &b);
	} else {
		fill_cache(e, &p->layer, &b);
	}
	profile_step_end(e->profile);
	for (size_t i = 0; i < count; i++)
		segs[i].kv->mtp += segs[i].rows;
	return 0;
}

/* What a tap is shown of a step. */
#include "engine/internal.h"

void engine_set_tap(struct engine *e, engine_tap fn, void *ctx)
{
	e->tap = fn;
	e->tap_ctx = ctx;
}

void engine_show(const struct engine *e, const struct batch *b, const char *point, size_t layer, enum dtype type,
	const void *data, size_t cols)
{
	struct tap_tensor t = { .point = point, .layer = layer, .type = type, .data = data, .rows = b->rows,
		.cols = cols, .segs = e->shown, .seg_count = b->count, .step = e->step };

	if (!e->tap)
		return;
	for (size_t i = 0; i < b->count; i++)
		e->shown[i] = (struct tap_rows){ b->segs[i].stream, batch_pos(b, &b->segs[i]), b->segs[i].rows,
			b->segs[i].name };
	e->tap(e->tap_ctx, &t);
}

void engine_show_last(const struct engine *e, const struct batch *b, const char *point, const float *data, size_t cols)
{
	struct tap_tensor t = { .point = point, .type = DT_F32, .data = data, .cols = cols, .segs = e->shown,
		.step = e->step };

	if (!e->tap)
		return;
	for (size_t i = 0; i < b->count; i++) {
		const struct segment *g = &b->segs[i];

		if (!g->want_logits)
			continue;
		e->shown[t.seg_count++] = (struct tap_rows){ g->stream,
			batch_pos(b, g) + g->rows - g->want_logits, g->want_logits, g->name };
		t.rows += g->want_logits;
	}
	e->tap(e->tap_ctx, &t);
}

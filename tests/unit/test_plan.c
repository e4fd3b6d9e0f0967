/* Plans for a unit: checked against what the unit is, the same on every rank that they are sent to. */
#include "base/mem.h"
#include "ep/plan.h"
#include "frame/messages_unit.h"
#include "tests/unit/frames.h"

static const int32_t ids[] = { 3, 0, 1, -1, 2, 0,  -1, -1, 0, 1, 3, 2 };
static const float weights[] = { 5, 3, 1, 1, 1, 1,  1, 1, 1, 1, 1, 1 };
static const struct plan_message plan = { 7, 2, 4, 3, 2, ids, weights };
static const struct plan_shape shape = { 2, 4, 3 };
static struct ds_err why;

/* look() on the plan as a frame that was read. */
static void with_plan(const struct plan_message *p, void (*look)(const struct frame *f, void *ctx), void *ctx)
{
	struct meta_builder *b = meta_new();
	int fd;
	struct frame_writer *w = frames_begin(&fd);

	if (plan_write(w, b, p, &why))
		tap_bail("%s", why.text);
	frames_look(w, fd, FRAME_PLAN, look, ctx);
	meta_free(b);
}

static bool as_planned(const struct placement *p)
{
	const struct placement_layer *l = &p->layer[0];

	return p->layers == 2 && p->experts == 4 && p->world == 3 && l->slots == 5 && l->logical[1] == 0 &&
		l->weight[1] == 0.75f && l->first[2] == 3 && p->layer[1].first[1] == 0 && p->layer[1].slots == 4;
}

static void taken(const struct frame *f, void *ctx)
{
	struct placement *p;
	uint64_t epoch = 0;

	(void)ctx;
	tap_ok(!plan_placement(f, &shape, &p, &epoch, &why) && as_planned(p) && epoch == 7,
		"a plan becomes a placement with its number");
	placement_free(p);
}

static void other(const struct frame *f, void *ctx)
{
	static const struct { struct plan_shape shape; const char *has, *want; } cases[] = {
		{ { 3, 4, 3 }, "2 MoE layers", "has 3" }, { { 2, 8, 3 }, "4 experts", "has 8" },
		{ { 2, 4, 16 }, "3 ranks", "has 16" },
	};
	struct placement *p;
	uint64_t epoch;

	(void)ctx;
	for (size_t i = 0; i < ARRAY_LEN(cases); i++)
		tap_ok(plan_placement(f, &cases[i].shape, &p, &epoch, &why) == DS_PROTO && !p &&
			strstr(why.text, cases[i].has) && strstr(why.text, cases[i].want),
			"a plan for others is refused with both values: %s", why.text);
}

static void damaged(const struct frame *f, void *ctx)
{
	struct frame bad = *f;
	struct placement *p;
	uint64_t epoch;

	(void)ctx;
	f->data[0] ^= 2; /* expert 1 for 3: all experts are still there */
	tap_ok(plan_placement(f, &shape, &p, &epoch, &why) == DS_DATA && !p && strstr(why.text, "hash"),
		"a damaged payload is refused: %s", why.text);
	f->data[0] ^= 2;
	bad.flags |= FRAME_MORE;
	tap_ok(plan_placement(&bad, &shape, &p, &epoch, &why) == DS_DATA && !p, "a plan in pieces is refused: %s",
		why.text);
	bad = *f;
	bad.type = FRAME_TEXT;
	tap_ok(plan_placement(&bad, &shape, &p, &epoch, &why) == DS_DATA && !p, "what is no plan is refused");
}

/* As bytes, from wherever they lie; every cut and every byte changed is refused or is read, never worse. */
static void sent(const struct frame *f, void *ctx)
{
	uint8_t *moved;
	struct placement *p;
	uint64_t epoch = 0;
	size_t n, cut = 0, changed = 0;
	void *bytes;

	(void)ctx;
	if (plan_pack(f, &bytes, &n, &why))
		tap_bail("%s", why.text);
	moved = mem_array(n + 1, 1);
	memcpy(moved + 1, bytes, n);
	tap_ok(!plan_unpack(moved + 1, n, &shape, &p, &epoch, &why) && as_planned(p) && epoch == 7,
		"as bytes it is the same plan, at any alignment");
	placement_free(p);
	for (size_t i = 0; i < n; i++) {
		void *exact = mem_copy(bytes, i); /* a sanitizer sees what is read behind it */

		cut += plan_unpack(exact, i, &shape, &p, &epoch, &why) == DS_DATA && !p;
		free(exact);
	}
	tap_is_int((long long)cut, (long long)n, "every cut of it is refused");
	for (size_t i = 0; i < 8 * n; i++) {
		moved[1 + i / 8] ^= (uint8_t)(1 << i % 8);
		if (plan_unpack(moved + 1, n, &shape, &p, &epoch, &why))
			changed++;
		placement_free(p);
		moved[1 + i / 8] ^= (uint8_t)(1 << i % 8);
	}
	tap_ok(changed > 4 * n, "most changes of a bit are noticed: %zu of %zu", changed, 8 * n);
	free(moved);
	free(bytes);
}

static void large(const struct frame *f, void *ctx)
{
	struct frame big = *f;
	void *bytes;
	size_t n;

	(void)ctx;
	big.data_len = PLAN_MOST_BYTES;
	tap_ok(plan_pack(&big, &bytes, &n, &why) == DS_DATA && !bytes, "a plan too large to be sent is refused: %s",
		why.text);
}

int main(void)
{
	with_plan(&plan, taken, NULL);
	with_plan(&plan, other, NULL);
	with_plan(&plan, damaged, NULL);
	with_plan(&plan, sent, NULL);
	with_plan(&plan, large, NULL);
	return tap_done();
}

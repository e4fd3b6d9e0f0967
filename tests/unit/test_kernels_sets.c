/*
 * Every fast kernel set against the scalar one, which is the specification, over the shapes of tests/shapes.h: random
 * data that is new in each run, outputs that are poisoned before, and nothing written beside them.  DS_TEST_SEED
 * repeats a run.
 */
#include <float.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "base/time.h"
#include "kernels/kernels.h"
#include "normal.h"
#include "tap.h"
#include "tests/shapes.h"

enum { GAP = 3, MOST_M = 130, MOST_N = 24 };

static const char *const names[] = { "avx2", "avx512f", "avx512bf16" };
enum { SETS = ARRAY_LEN(names) };
static struct kern_stream *scalar, *sets[SETS]; /* NULL: the CPU does not run it */
static uint64_t seed, draws;

static void *need(size_t bytes)
{
	void *p = mem_aligned(bytes + 1);

	if (!p)
		tap_bail("no memory");
	return p;
}

static float *poisoned(size_t n)
{
	float *p = need(n * sizeof(*p));

	memset(p, 0xff, n * sizeof(*p));
	return p;
}

static bool is_poison(const float *p, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (memcmp(p + i, &(uint32_t){ UINT32_MAX }, sizeof(*p)))
			return false;
	return true;
}

/* Uniform sums are quick to make and near enough to normal ones. */
static float draw(void)
{
	uint64_t u = random_bits(seed, draws++);

	return (float)((double)((u & 0xffff) + (u >> 16 & 0xffff) + (u >> 32 & 0xffff) + (u >> 48)) / 65536.0 - 2.0);
}

static float *drawn(size_t n)
{
	float *p = need(n * sizeof(*p));

	for (size_t i = 0; i < n; i++)
		p[i] = draw();
	return p;
}

/* What stands between rows must stay poison. */
static bool gaps_hold(const float *y, size_t rows, size_t cols)
{
	for (size_t r = 0; r < rows; r++)
		if (!is_poison(y + r * (cols + GAP) + cols, GAP))
			return false;
	return true;
}

/* ---- products ---- */

static void put_element(void *p, size_t i, enum dtype type, float v)
{
	if (type == DT_F32)
		((float *)p)[i] = v;
	else if (type == DT_BF16)
		((uint16_t *)p)[i] = f32_to_bf16(v);
	else if (type == DT_F16) /* of either sign, from 2^-4 to 2^4 */
		((uint16_t *)p)[i] = (uint16_t)(0x2c00 | ((random_bits(seed, draws++) & 0x9fff)));
	else
		((uint8_t *)p)[i] = f32_to_e4m3(v * 60);
}

/* n rows of a shape's k columns, NaN between the rows; its scales. */
static void *make_weights(struct mat *m, const struct shape *s, size_t n, enum dtype type)
{
	size_t ld = s->k + GAP, blocks = (s->row0 + n + FP8_BLOCK - 1) / FP8_BLOCK;
	size_t scale_ld = (s->k + FP8_BLOCK - 1) / FP8_BLOCK + 1, bytes = round_up(n * ld * dtype_size(type), 64);
	char *p = need(bytes + blocks * scale_ld * sizeof(float));
	float *scale = (float *)(void *)(p + bytes);

	for (size_t i = 0; i < n * ld; i++) {
		bool gap = i % ld >= s->k;

		put_element(p, i, type, gap ? NAN : draw());
		if (gap && type == DT_F16)
			((uint16_t *)(void *)p)[i] = 0x7e00;
	}
	for (size_t i = 0; i < blocks * scale_ld; i++)
		scale[i] = 0.01f + 0.01f * fabsf(draw());
	*m = (struct mat){ .data = p, .rows = n, .cols = s->k, .ld = ld, .type = type };
	if (type == DT_F8_E4M3) {
		m->scale = scale;
		m->scale_ld = scale_ld;
		m->row0 = s->row0;
	}
	return p;
}

/* The same with every sign cleared. */
static void *magnitudes(const struct mat *m, struct mat *out)
{
	size_t size = dtype_size(m->type), n = m->rows * m->ld;
	uint8_t *p = need(n * size);

	memcpy(p, m->data, n * size);
	for (size_t i = 0; i < n; i++)
		p[i * size + size - 1] &= 0x7f;
	*out = *m;
	out->data = p;
	return p;
}

static void run_product(struct kern_stream *s, enum act_kind kind, const float *x, size_t rows, const struct mat *w,
	float *y, void *buf, struct act *a)
{
	struct gemm g = { .y = y, .ldy = w->rows + GAP, .x = a, .w = w, .rows = rows };

	kern_pack(s, kind, false, x, rows, w->cols, w->cols, buf, a);
	kern_gemm(s, &g, 1);
}

/* Largest difference in units of 1e-6 of the sum of |terms|. */
static double difference(const float *y, const float *want, const float *size, size_t rows, size_t cols)
{
	double worst = 0;

	for (size_t r = 0; r < rows; r++)
		for (size_t c = 0; c < cols; c++) {
			size_t i = r * (cols + GAP) + c;
			double d = fabs((double)y[i] - want[i]) / (1e-6 * size[i] + DBL_MIN);

			if (!(d <= worst)) /* a NaN is worst */
				worst = d;
		}
	return worst;
}

struct outcome { double worst[SETS]; bool codes, gaps; };

/* One weight matrix with m rows on all sets. */
static void compare_product(enum act_kind kind, const struct mat *w, size_t m, struct outcome *o)
{
	size_t area = m * (w->rows + GAP), blocks = (w->cols + FP8_BLOCK - 1) / FP8_BLOCK;
	float *x = drawn(m * w->cols), *want = poisoned(area), *size = poisoned(area), *y[SETS];
	void *buf = need(kern_pack_bytes(kind, m, w->cols)), *buf2 = need(kern_pack_bytes(kind, m, w->cols));
	struct act a, b;
	struct mat abs;
	void *p = magnitudes(w, &abs);

	run_product(scalar, kind, x, m, w, want, buf2, &b);
	for (size_t i = 0; i < SETS; i++) {
		y[i] = poisoned(area);
		if (!sets[i])
			continue;
		run_product(sets[i], kind, x, m, w, y[i], buf, &a);
		o->gaps &= gaps_hold(y[i], m, w->rows);
		if (kind == ACT_F8)
			o->codes &= memcmp(a.data, b.data, m * a.ld) == 0 &&
			            memcmp(a.scale, b.scale, m * blocks * sizeof(float)) == 0;
	}
	for (size_t k = 0; k < m * w->cols; k++)
		x[k] = fabsf(x[k]);
	run_product(scalar, kind, x, m, &abs, size, buf2, &b);
	for (size_t i = 0; i < SETS; i++) {
		double d = sets[i] ? difference(y[i], want, size, m, w->rows) : 0;

		o->worst[i] = d <= o->worst[i] ? o->worst[i] : d;
		free(y[i]);
	}
	free(p);
	free(x);
	free(want);
	free(size);
	free(buf);
	free(buf2);
}

static const char *kind_name(enum act_kind kind)
{
	return kind == ACT_F8 ? "F8" : kind == ACT_BF16 ? "BF16" : "F32";
}

static void test_product(const struct shape *s, enum act_kind kind, enum dtype type, const size_t *m, size_t count)
{
	size_t n = s->n < MOST_N ? s->n : MOST_N - random_bits(seed, draws++) % 5;
	struct outcome o = { .codes = true, .gaps = true };
	struct mat w;
	void *p = make_weights(&w, s, n, type);

	for (size_t i = 0; i < count; i++)
		compare_product(kind, &w, m[i], &o);
	for (size_t i = 0; i < SETS; i++)
		if (sets[i])
			tap_ok(o.worst[i] <= 1, "%s: %s x %s, %s %s [%zu of %zu, %zu], %zu numbers of rows up to %zu: "
				"%.2g of the difference allowed", names[i], kind_name(kind), dtype_name(type), s->model,
				s->name, n, s->n, s->k, count, m[count - 1], o.worst[i]);
	if (!o.codes || !o.gaps)
		tap_ok(false, "%s %s: equal codes and scales (%d), nothing beside the output touched (%d)", s->model,
			s->name, o.codes, o.gaps);
	free(p);
}

/* The example model's shapes with all numbers of rows from 1 to 130; the others with four, other ones each. */
static void test_products(void)
{
	static const struct pair { enum act_kind act; enum dtype weight; } pairs[] = {
		{ ACT_F8, DT_F8_E4M3 }, { ACT_F32, DT_F8_E4M3 }, { ACT_BF16, DT_F8_E4M3 }, { ACT_BF16, DT_BF16 },
		{ ACT_F32, DT_BF16 }, { ACT_F32, DT_F32 }, { ACT_BF16, DT_F32 }, { ACT_F32, DT_F16 },
		{ ACT_BF16, DT_F16 },
	};
	static const struct shape every = { "any", "all rows", 11, 256, DT_F8_E4M3, 90 };
	size_t m[MOST_M], turn = random_bits(seed, draws++) % MOST_M;

	for (size_t i = 0; i < MOST_M; i++)
		m[i] = i + 1;
	for (size_t p = 0; p < ARRAY_LEN(pairs); p++)
		test_product(&every, pairs[p].act, pairs[p].weight, m, MOST_M);
	for (size_t i = 0; i < ARRAY_LEN(shapes); i++)
		for (size_t p = 0; p < ARRAY_LEN(pairs); p++) {
			size_t some[4] = { 1 + turn % 8, 1 + turn % 17, 1 + turn % 33, 1 + turn % MOST_M };
			bool released = pairs[p].weight == shapes[i].type;

			/* long rows in the type they are released in, short ones in all */
			if (!released && shapes[i].k > 1000)
				continue;
			if (shapes[i].k > 8000)
				some[3] = some[2];
			test_product(&shapes[i], pairs[p].act, pairs[p].weight, some, ARRAY_LEN(some));
			turn += 37;
		}
}

/* ---- rows ---- */

/* Largest |a - b| / (|b| + least) of rows of cols, GAP apart. */
static double relative(const float *a, const float *b, size_t rows, size_t cols, double least)
{
	double worst = 0;

	for (size_t r = 0; r < rows; r++)
		for (size_t c = 0; c < cols; c++) {
			size_t i = r * (cols + GAP) + c;
			double d = fabs((double)a[i] - b[i]) / (fabs((double)b[i]) + least);

			worst = d <= worst ? worst : d;
		}
	return worst;
}

enum { ROWS = 5 };

struct rows_case { size_t cols, ld; float *x, *u, *w; };

static void norm_and_swiglu(struct kern_stream *s, const struct rows_case *c, bool round, float *norm, float *glu)
{
	struct mat w = { .data = c->w, .rows = 1, .cols = c->cols, .ld = c->cols, .type = DT_F32 };

	kern_rmsnorm(s, norm, c->ld, c->x, c->ld, &w, 1e-6f, ROWS, c->cols, round);
	kern_swiglu(s, glu, c->ld, c->x, c->ld, c->u, c->ld, ROWS, c->cols, round);
}

/* Not rounded they agree closely; rounded they may fall to either side of a tie's neighbourhood. */
static bool same_norm_and_swiglu(struct kern_stream *s, const struct rows_case *c, bool round)
{
	float *a[4];
	double allowed = round ? 0x1p-7 : 1e-6;
	bool ok;

	for (size_t i = 0; i < ARRAY_LEN(a); i++)
		a[i] = poisoned(ROWS * c->ld);
	norm_and_swiglu(scalar, c, round, a[0], a[1]);
	norm_and_swiglu(s, c, round, a[2], a[3]);
	ok = relative(a[2], a[0], ROWS, c->cols, 1e-30) <= allowed && gaps_hold(a[2], ROWS, c->cols) &&
	     relative(a[3], a[1], ROWS, c->cols, 1e-30) <= allowed && gaps_hold(a[3], ROWS, c->cols);
	for (size_t i = 0; i < ARRAY_LEN(a); i++)
		free(a[i]);
	return ok;
}

/* Quantised and rounded rows are the same bits, so are sums. */
static bool same_packs(struct kern_stream *s, const struct rows_case *c, enum act_kind kind, bool ue8m0)
{
	size_t bytes = kern_pack_bytes(kind, ROWS, c->cols), ld = round_up(c->cols, FP8_BLOCK);
	void *a = need(bytes), *b = need(bytes);
	struct act x, y;
	bool ok;

	memset(a, 0xff, bytes);
	memset(b, 0xff, bytes);
	kern_pack(scalar, kind, ue8m0, c->x, ROWS, c->cols, c->ld, a, &x);
	kern_pack(s, kind, ue8m0, c->x, ROWS, c->cols, c->ld, b, &y);
	ok = memcmp(x.data, y.data, ROWS * ld * (kind == ACT_F8 ? 1 : 2)) == 0;
	if (kind == ACT_F8)
		ok &= memcmp(x.scale, y.scale, ROWS * (ld / FP8_BLOCK) * sizeof(float)) == 0;
	free(a);
	free(b);
	return ok;
}

static bool same_flat(struct kern_stream *s, const struct rows_case *c)
{
	size_t n = ROWS * c->ld, bytes = n * sizeof(float);
	float *a = need(bytes), *b = need(bytes);
	bool ok = true;

	for (int round = 0; round < 2; round++) {
		memcpy(a, c->u, bytes);
		memcpy(b, c->u, bytes);
		kern_add(scalar, a, c->x, n, round);
		kern_add(s, b, c->x, n, round);
		ok &= memcmp(a, b, bytes) == 0;
	}
	memcpy(a, c->u, bytes);
	memcpy(b, c->u, bytes);
	kern_round(scalar, a, n);
	kern_round(s, b, n);
	ok &= memcmp(a, b, bytes) == 0;
	free(a);
	free(b);
	return ok;
}

static bool same_argmax(struct kern_stream *s, const struct rows_case *c)
{
	uint32_t a[ROWS], b[ROWS];
	double x[ROWS], y[ROWS];
	bool ok = true;

	kern_argmax_lse(scalar, c->x, c->ld, ROWS, c->cols, a, x);
	kern_argmax_lse(s, c->x, c->ld, ROWS, c->cols, b, y);
	for (size_t r = 0; r < ROWS; r++)
		ok &= a[r] == b[r] && fabs(x[r] - y[r]) <= 1e-6 * (1 + fabs(x[r]));
	return ok;
}

/* Rope of heads that fill the row, and a sum of rows by weight. */
static bool same_rope_and_combine(struct kern_stream *s, const struct rows_case *c, bool round)
{
	enum { TOP = 2 };
	static const uint32_t slot[ROWS * TOP] = { 4, 1, 0, 3, 2, 2, 1, 0, 3, 4 };
	size_t bytes = ROWS * c->ld * sizeof(float), dim = c->cols < 64 ? c->cols / 2 * 2 : 64;
	float *a = need(bytes), *b = need(bytes);
	bool ok;

	memcpy(a, c->u, bytes);
	memcpy(b, c->u, bytes);
	if (dim) {
		kern_rope(scalar, a, c->ld, dim, c->cols / dim, dim, c->x, ROWS, round);
		kern_rope(s, b, c->ld, dim, c->cols / dim, dim, c->x, ROWS, round);
	}
	kern_combine(scalar, a, c->ld, c->x, c->ld, slot, c->w, TOP, ROWS, c->cols, round);
	kern_combine(s, b, c->ld, c->x, c->ld, slot, c->w, TOP, ROWS, c->cols, round);
	ok = memcmp(a, b, bytes) == 0;
	free(a);
	free(b);
	return ok;
}

static void test_rows(struct kern_stream *s, const char *name)
{
	bool norm = true, pack = true, flat = true, argmax = true, mixed = true;

	for (size_t i = 0; i < ARRAY_LEN(widths); i++) {
		struct rows_case c = { .cols = widths[i], .ld = widths[i] + GAP };

		c.x = drawn(ROWS * c.ld + ROWS * 64);
		c.u = drawn(ROWS * c.ld);
		c.w = drawn(c.cols + 2 * ROWS);
		for (int round = 0; round < 2; round++) {
			norm &= same_norm_and_swiglu(s, &c, round);
			mixed &= same_rope_and_combine(s, &c, round);
			pack &= same_packs(s, &c, ACT_F8, round);
		}
		pack &= same_packs(s, &c, ACT_BF16, false);
		flat &= same_flat(s, &c);
		argmax &= same_argmax(s, &c);
		free(c.x);
		free(c.u);
		free(c.w);
	}
	tap_ok(norm, "%s: norm and SwiGLU of %zu widths", name, ARRAY_LEN(widths));
	tap_ok(pack, "%s: BF16 and FP8 activations: equal bits", name);
	tap_ok(flat, "%s: sums and rounding: equal bits", name);
	tap_ok(argmax, "%s: argmax and log of the sum of exponentials", name);
	tap_ok(mixed, "%s: rope and combine: equal bits", name);
}

int main(void)
{
	const char *given = getenv("DS_TEST_SEED");
	struct ds_err err;

	seed = given ? strtoull(given, NULL, 0) : (uint64_t)time_mono_ns();
	tap_diag("DS_TEST_SEED=%llu", (unsigned long long)seed);
	if (kern_stream_new(&scalar, 2, "scalar", &err))
		tap_bail("%s", err.text);
	for (size_t i = 0; i < SETS; i++)
		if (kern_stream_new(&sets[i], 2, names[i], &err)) {
			sets[i] = NULL;
			tap_skip("this CPU does not run %s", names[i]);
		}
	test_products();
	for (size_t i = 0; i < SETS; i++) {
		if (sets[i])
			test_rows(sets[i], names[i]);
		kern_stream_free(sets[i]);
	}
	kern_stream_free(scalar);
	return tap_done();
}

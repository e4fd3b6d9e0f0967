/*
 * Every kernel set that this CPU runs, on shapes of all sorts: against sums in double precision, and against itself,
 * bit by bit, whatever the number of rows, their place, the tiling and the threads (law 2).
 */
#include <float.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "base/random.h"
#include "kernels/kernels.h"
#include "normal.h"
#include "tap.h"

static const char *const sets[] = { "scalar", "avx2", "avx512f", "avx512bf16" };

static void *need(size_t bytes)
{
	void *p = mem_aligned(bytes + 1);

	if (!p)
		tap_bail("no memory");
	return p;
}

static uint64_t draws;

static float normal(void)
{
	return (float)normal_at(7, draws++);
}

/* ---- weights ---- */

struct weight {
	struct mat m;
	void *data;
	float *scale;
};

/* rows x cols at an odd leading dimension; F8 begins at row0 of its scale blocks. */
static struct weight weight_new(enum dtype type, size_t rows, size_t cols, size_t row0)
{
	size_t ld = cols + 3, blocks = (row0 + rows + 127) / 128, scale_ld = (cols + 127) / 128 + 1;
	struct weight w = { .m = { .rows = rows, .cols = cols, .ld = ld, .type = type } };

	w.data = need(rows * ld * dtype_size(type));
	/* all of it filled: what lies between the rows must not be read into a sum */
	for (size_t i = 0; i < rows * ld; i++) {
		bool gap = i % ld >= cols;
		float v = gap ? NAN : normal();

		if (type == DT_F32)
			((float *)w.data)[i] = v;
		else if (type == DT_BF16)
			((uint16_t *)w.data)[i] = f32_to_bf16(v);
		else if (type == DT_F16)
			((uint16_t *)w.data)[i] = gap ? 0x7e00 : 0x2c00 | (uint16_t)(random_bits(3, draws++) & 0x8fff);
		else
			((uint8_t *)w.data)[i] = gap ? 0x7f : f32_to_e4m3(v * 60);
	}
	if (type == DT_F8_E4M3) {
		w.scale = need(blocks * scale_ld * sizeof(float));
		for (size_t i = 0; i < blocks * scale_ld; i++)
			w.scale[i] = 0.01f + 0.02f * (float)random_unit(9, draws++);
		w.m.scale = w.scale;
		w.m.scale_ld = scale_ld;
		w.m.row0 = row0;
	}
	w.m.data = w.data;
	return w;
}

static void weight_free(struct weight *w)
{
	free(w->data);
	free(w->scale);
}

static double weight_at(const struct mat *m, size_t r, size_t c)
{
	size_t i = r * m->ld + c;

	switch (m->type) {
	case DT_F32:
		return ((const float *)m->data)[i];
	case DT_BF16:
		return bf16_to_f32(((const uint16_t *)m->data)[i]);
	case DT_F16:
		return f16_to_f32(((const uint16_t *)m->data)[i]);
	default:
		return (double)e4m3_to_f32(((const uint8_t *)m->data)[i]) *
		       m->scale[(m->row0 + r) / 128 * m->scale_ld + c / 128];
	}
}

static double act_at(const struct act *a, size_t r, size_t c)
{
	switch (a->kind) {
	case ACT_F32:
		return ((const float *)a->data)[r * a->ld + c];
	case ACT_BF16:
		return bf16_to_f32(((const uint16_t *)a->data)[r * a->ld + c]);
	default:
		return (double)e4m3_to_f32(((const uint8_t *)a->data)[r * a->ld + c]) *
		       a->scale[r * ((a->cols + 127) / 128) + c / 128];
	}
}

/* Largest |y - exact| in units of 1e-6 * sum of |terms|. */
static double error_of(const struct gemm *g)
{
	size_t cols = g->w->cols;
	double *w = need(g->w->rows * cols * sizeof(*w)), *x = need(cols * sizeof(*x)), worst = 0;

	for (size_t n = 0; n < g->w->rows; n++)
		for (size_t k = 0; k < cols; k++)
			w[n * cols + k] = weight_at(g->w, n, k);
	for (size_t i = 0; i < g->rows; i++) {
		for (size_t k = 0; k < cols; k++)
			x[k] = act_at(g->x, g->gather ? g->gather[i] : g->row0 + i, k);
		for (size_t n = 0; n < g->w->rows; n++) {
			double sum = 0, abs = 0, d;

			for (size_t k = 0; k < cols; k++) {
				double t = x[k] * w[n * cols + k];

				sum += t;
				abs += fabs(t);
			}
			d = fabs(g->y[i * g->ldy + n] - sum) / (1e-6 * abs + DBL_MIN);
			if (!(d <= worst)) /* a NaN is worst */
				worst = d;
		}
	}
	free(w);
	free(x);
	return worst;
}

/* ---- products ---- */

static const struct pair {
	enum act_kind act;
	enum dtype weight;
	const char *name;
} pairs[] = {
	{ ACT_F32, DT_F32, "F32 x F32" }, { ACT_F32, DT_BF16, "F32 x BF16" }, { ACT_F32, DT_F16, "F32 x F16" },
	{ ACT_F32, DT_F8_E4M3, "F32 x F8" }, { ACT_BF16, DT_BF16, "BF16 x BF16" }, { ACT_BF16, DT_F32, "BF16 x F32" },
	{ ACT_BF16, DT_F16, "BF16 x F16" }, { ACT_BF16, DT_F8_E4M3, "BF16 x F8" }, { ACT_F8, DT_F8_E4M3, "F8 x F8" },
};

static const struct shape {
	size_t rows, n, k, row0;
} shapes[] = {
	{ 3, 5, 1, 0 }, { 65, 1, 7, 0 }, { 4, 136, 48, 60 }, { 7, 33, 130, 120 }, { 70, 136, 576, 100 },
	{ 9, 70, 1400, 127 },
	{ 131, 40, 256, 0 }, { 2, 17, 12345, 3 }, { 6, 9, 2200, 0 }, { 2, 5, 90000, 0 },
};

enum { MOST = 140 };

/* The same rows in other companies give the same bits as `y` [rows, n]. */
static bool same_bits(struct kern_stream *const streams[2], const struct act *x, const struct mat *w, const float *y)
{
	size_t rows = x->rows, n = w->rows;
	float *z = need(rows * n * sizeof(*z));
	uint32_t order[MOST];
	bool same = true;

	for (int t = 0; t < 2; t++)
		for (size_t chunk = 1; chunk <= rows; chunk = chunk < 6 ? chunk + 1 : chunk * 3) {
			struct gemm g[MOST];
			size_t count = 0;

			memset(z, 0xff, rows * n * sizeof(*z));
			for (size_t r = 0; r < rows; r += chunk, count++)
				g[count] = (struct gemm){ .y = z + r * n, .ldy = n, .x = x, .w = w, .row0 = r,
					.rows = rows - r < chunk ? rows - r : chunk };
			kern_gemm(streams[t], g, count);
			same &= memcmp(y, z, rows * n * sizeof(*z)) == 0;
		}
	for (size_t r = 0; r < rows; r++)
		order[r] = (uint32_t)((r * 37 + 11) % rows);
	kern_gemm(streams[1], &(struct gemm){ .y = z, .ldy = n, .x = x, .w = w, .rows = rows, .gather = order }, 1);
	for (size_t r = 0; r < rows; r++)
		same &= memcmp(z + r * n, y + order[r] * n, n * sizeof(*z)) == 0;
	/* slices of the weight rows */
	for (size_t a = 0, cut = 1; a < n; a += cut, cut = cut * 2 + 1) {
		size_t len = n - a < cut ? n - a : cut;
		struct mat part = mat_rows(w, a, len);

		kern_gemm(streams[0], &(struct gemm){ .y = z + a, .ldy = n, .x = x, .w = &part, .rows = rows }, 1);
	}
	same &= memcmp(z, y, rows * n * sizeof(*z)) == 0;
	free(z);
	return same;
}

static void test_product(struct kern_stream *const streams[2], const struct pair *p, const struct shape *s)
{
	struct weight w = weight_new(p->weight, s->n, s->k, p->weight == DT_F8_E4M3 ? s->row0 : 0);
	size_t ldx = s->k + 5;
	float *x = need(s->rows * ldx * sizeof(*x)), *y = need(s->rows * s->n * sizeof(*y));
	float *rounded = need(s->rows * s->n * sizeof(*y));
	void *buf = need(kern_pack_bytes(p->act, s->rows, s->k));
	struct act a;
	struct gemm g = { .y = y, .ldy = s->n, .x = &a, .w = &w.m, .rows = s->rows };
	double error;
	bool ok = true;

	for (size_t i = 0; i < s->rows * ldx; i++)
		x[i] = i % ldx < s->k ? normal() : NAN;
	kern_pack(streams[0], p->act, false, x, s->rows, s->k, ldx, buf, &a);
	kern_gemm(streams[0], &g, 1);
	error = error_of(&g);
	tap_ok(error <= 1, "%s %s [%zu, %zu] x [%zu]: error %.2g of what is allowed", kern_set_name(streams[0]),
		p->name, s->rows, s->k, s->n, error);
	tap_ok(same_bits(streams, &a, &w.m, y), "%s %s [%zu, %zu] x [%zu]: same bits in any company",
		kern_set_name(streams[0]), p->name, s->rows, s->k, s->n);
	g.y = rounded;
	g.round = true;
	kern_gemm(streams[1], &g, 1);
	for (size_t i = 0; i < s->rows * s->n; i++)
		ok &= rounded[i] == bf16_to_f32(f32_to_bf16(y[i]));
	if (!ok)
		tap_ok(ok, "%s %s: rounded", kern_set_name(streams[0]), p->name);
	free(x);
	free(y);
	free(rounded);
	free(buf);
	weight_free(&w);
}

/* Many products at once, some without rows; a NaN or an infinity stays in its row. */
static void test_group(struct kern_stream *const streams[2])
{
	enum { COUNT = 300, ROWS = 5, K = 200, N = 20 };
	struct weight w = weight_new(DT_F8_E4M3, N * COUNT, K, 0);
	float *x = need(ROWS * K * sizeof(*x)), *y = need(COUNT * ROWS * N * sizeof(*y));
	void *buf = need(kern_pack_bytes(ACT_F8, ROWS, K));
	struct gemm *g = need(COUNT * sizeof(*g));
	struct mat *m = need(COUNT * sizeof(*m));
	struct act a;
	bool ok = true, nan = true;

	for (size_t i = 0; i < ROWS * K; i++)
		x[i] = normal();
	x[2 * K + 150] = NAN;
	x[3 * K + 10] = INFINITY;
	kern_pack(streams[1], ACT_F8, true, x, ROWS, K, K, buf, &a);
	for (size_t i = 0; i < COUNT; i++) {
		m[i] = mat_rows(&w.m, i * N, N);
		g[i] = (struct gemm){ .y = y + i * ROWS * N, .ldy = N, .x = &a, .w = &m[i], .row0 = 0,
			.rows = i % (ROWS + 1) };
	}
	kern_gemm(streams[1], g, COUNT);
	for (size_t i = 0; i < COUNT; i++) {
		for (size_t r = 0; r < g[i].rows; r++)
			for (size_t n = 0; n < N; n++)
				nan &= isnan(g[i].y[r * N + n]) == (r == 2 || r == 3);
		g[i].rows = g[i].rows < 2 ? g[i].rows : 2;
		ok &= error_of(&g[i]) <= 1;
	}
	kern_gemm(streams[1], g, 0);
	tap_ok(ok, "%s: a group of %d products", kern_set_name(streams[0]), COUNT);
	tap_ok(nan, "%s: NaN and infinity stay in their rows", kern_set_name(streams[0]));
	free(x);
	free(y);
	free(buf);
	free(g);
	free(m);
	weight_free(&w);
}

static struct kern_stream *stream(const char *set, int threads)
{
	struct kern_stream *s;
	struct ds_err err;
	int rc = kern_stream_new(&s, threads, set, &err);

	if (rc && rc != DS_CONFIG)
		tap_bail("%s", err.text);
	return rc ? NULL : s;
}

/* ---- threads ---- */

static void count_item(void *arg, size_t i, int worker)
{
	int *seen = arg;

	(void)worker;
	__atomic_fetch_add(&seen[i], 1, __ATOMIC_RELAXED);
}

static void test_threads(void)
{
	enum { N = 1000 };
	int seen[N];
	bool ok = true;

	for (int threads = 1; threads <= 5; threads++) {
		struct kern_stream *s = stream("scalar", threads);

		for (size_t n = 0; n < N; n += 1 + n / 3) {
			memset(seen, 0, sizeof(seen));
			for (int pass = 1; pass <= 20; pass++)
				kern_parallel(s, n, count_item, seen);
			for (size_t i = 0; i < N; i++)
				ok &= seen[i] == (i < n ? 20 : 0);
		}
		/* jobs so short that one begins while threads still look for items of the last */
		for (int job = 0; job < 20000; job++) {
			memset(seen, 0, sizeof(seen));
			kern_parallel(s, (size_t)(2 + job % 6), count_item, seen);
			for (int i = 0; i < 8; i++)
				ok &= seen[i] == (i < 2 + job % 6);
		}
		ok &= kern_threads(s) == threads;
		kern_stream_free(s);
	}
	tap_ok(ok, "kern_parallel does every item once, with 1 to 5 threads");
}

static void test_choice(void)
{
	struct kern_stream *s = NULL;
	struct ds_err err;

	tap_is_int(kern_stream_new(&s, 1, "sse9", &err), DS_CONFIG, "kernels of an unknown name are refused");
	tap_ok(strstr(err.text, "'sse9'") != NULL, "and named: %s", err.text);
	tap_is_int(kern_stream_new(&s, 0, "scalar", &err), DS_USAGE, "no threads are refused");
	setenv("DS_KERNELS", "scalar", 1);
	tap_is_int(kern_stream_new(&s, 1, NULL, &err), 0, "DS_KERNELS is read");
	tap_is_str(kern_set_name(s), "scalar", "and chooses the set");
	kern_stream_free(s);
	unsetenv("DS_KERNELS");
}

int main(void)
{
	test_choice();
	test_threads();
	for (size_t i = 0; i < ARRAY_LEN(sets); i++) {
		struct kern_stream *s[2] = { stream(sets[i], 1), stream(sets[i], 3) };

		if (!s[0] || !s[1]) {
			tap_skip("this CPU does not run %s", sets[i]);
			continue;
		}
		for (size_t p = 0; p < ARRAY_LEN(pairs); p++)
			for (size_t k = 0; k < ARRAY_LEN(shapes); k++)
				test_product(s, &pairs[p], &shapes[k]);
		test_group(s);
		kern_stream_free(s[0]);
		kern_stream_free(s[1]);
	}
	return tap_done();
}

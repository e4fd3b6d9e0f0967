/* Attention: both forms, every set of kernels, against double precision; and that no row's bits depend on its
 * company. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "base/mem.h"
#include "kernels/kernels.h"
#include "tests/unit/tap.h"

enum { TOKENS = 202, MAX_SEGS = 6 };

static uint64_t state = 1;

static float uniform(void) /* -1 .. 1 */
{
	state = state * 6364136223846793005u + 1442695040888963407u;
	return (float)((double)(state >> 11) / 0x1p52 - 1.0);
}

static float bf16(float x)
{
	return bf16_to_f32(f32_to_bf16(x));
}

struct world {
	struct attn_shape a;
	struct mat kv_b;
	enum dtype kv_type;
	size_t page, row_ld;
	float *w;      /* [heads * (nope + v), lora] values of kv_b */
	float *cache;  /* [TOKENS, lora + rope] */
	float *q;      /* [TOKENS, heads * (nope + rope)] */
	void *pages[TOKENS];
	void *data;
	float *scale;
};

static void make_kv_b(struct world *w, enum dtype type)
{
	size_t rows = w->a.heads * (w->a.nope + w->a.v), cols = w->a.lora, sld = (cols + 127) / 128 + 1;

	w->w = mem_calloc(rows * cols, sizeof(float));
	w->data = mem_aligned(rows * cols * 4);
	w->scale = mem_calloc(((rows + 127) / 128) * sld, sizeof(float));
	for (size_t i = 0; i < (rows + 127) / 128 * sld; i++)
		w->scale[i] = 0.004f + 0.001f * uniform();
	for (size_t i = 0; i < rows * cols; i++) {
		float x = uniform() * 2.0f / sqrtf((float)cols), s = w->scale[i / cols / 128 * sld + i % cols / 128];
		if (type == DT_F32) {
			((float *)w->data)[i] = w->w[i] = x;
		} else if (type == DT_BF16) {
			((uint16_t *)w->data)[i] = f32_to_bf16(x);
			w->w[i] = bf16(x);
		} else {
			((uint8_t *)w->data)[i] = f32_to_e4m3(x / s);
			w->w[i] = e4m3_to_f32(((uint8_t *)w->data)[i]) * s;
		}
	}
	w->kv_b = (struct mat){ .data = w->data, .scale = type == DT_F8_E4M3 ? w->scale : NULL, .rows = rows,
		.cols = cols, .ld = cols, .scale_ld = sld, .type = type };
	w->a.kv_b = &w->kv_b;
}

/* Pages hold tokens 0 .. tokens - 1; all beyond is NaN if poison, else the next tokens. */
static void fill_pages(struct world *w, size_t tokens, bool poison)
{
	size_t dim = w->a.lora + w->a.rope;

	for (size_t t = 0; t < (TOKENS + w->page - 1) / w->page * w->page; t++)
		for (size_t i = 0; i < w->row_ld; i++) {
			float x = i < dim && t < TOKENS && (t < tokens || !poison) ? w->cache[t * dim + i] : NAN;
			size_t at = t % w->page * w->row_ld + i;
			if (w->kv_type == DT_BF16)
				((uint16_t *)w->pages[t / w->page])[at] = f32_to_bf16(x);
			else
				((float *)w->pages[t / w->page])[at] = x;
		}
}

static void world_new(struct world *w, const struct attn_shape *a, size_t page, enum dtype kv, enum dtype kv_b)
{
	size_t dim = a->lora + a->rope, qdim = a->heads * (a->nope + a->rope);

	memset(w, 0, sizeof(*w));
	w->a = *a;
	w->kv_type = kv;
	w->page = page;
	w->row_ld = dim + 3 * (a->rope % 3);
	make_kv_b(w, kv_b);
	w->cache = mem_calloc(TOKENS * dim, sizeof(float));
	w->q = mem_calloc(TOKENS * qdim, sizeof(float));
	for (size_t i = 0; i < TOKENS * dim; i++)
		w->cache[i] = kv == DT_BF16 || a->round ? bf16(uniform()) : uniform();
	for (size_t i = 0; i < TOKENS * qdim; i++)
		w->q[i] = a->round ? bf16(3 * uniform()) : 3 * uniform();
	for (size_t i = 0; i < (TOKENS + page - 1) / page; i++)
		w->pages[i] = mem_aligned(page * w->row_ld * 4);
	fill_pages(w, TOKENS, false);
}

static void world_free(struct world *w)
{
	free(w->w);
	free(w->data);
	free(w->scale);
	free(w->cache);
	free(w->q);
	for (size_t i = 0; i < TOKENS; i++)
		free(w->pages[i]);
}

/* out [v] of one row and head, expanded, in double. */
static void reference(const struct world *w, size_t pos, size_t head, double *out)
{
	const struct attn_shape *a = &w->a;
	const float *q = w->q + (pos * a->heads + head) * (a->nope + a->rope);
	const float *wk = w->w + head * (a->nope + a->v) * a->lora, *wv = wk + a->nope * a->lora;
	double p[TOKENS], *lat = mem_calloc(a->lora, sizeof(double)), max = -INFINITY, sum = 0;

	for (size_t n = 0; n < a->nope; n++)
		for (size_t i = 0; i < a->lora; i++)
			lat[i] += (double)q[n] * wk[n * a->lora + i];
	for (size_t t = 0; t <= pos; t++) {
		const float *c = w->cache + t * (a->lora + a->rope);
		p[t] = 0;
		for (size_t i = 0; i < a->lora; i++)
			p[t] += lat[i] * c[i];
		for (size_t i = 0; i < a->rope; i++)
			p[t] += (double)q[a->nope + i] * c[a->lora + i];
		p[t] *= a->scale;
		max = p[t] > max ? p[t] : max;
	}
	memset(lat, 0, a->lora * sizeof(*lat));
	for (size_t t = 0; t <= pos; t++) {
		p[t] = exp(p[t] - max);
		sum += p[t];
		for (size_t i = 0; i < a->lora; i++)
			lat[i] += p[t] * w->cache[t * (a->lora + a->rope) + i];
	}
	for (size_t v = 0; v < a->v; v++) {
		out[v] = 0;
		for (size_t i = 0; i < a->lora; i++)
			out[v] += wv[v * a->lora + i] * lat[i] / sum;
	}
	free(lat);
}

typedef void attn_fn(struct kern_stream *s, const struct attn_shape *a, const struct attn_seg *segs, size_t count);

static struct attn_seg seg_at(struct world *w, float *out, size_t pos0, size_t rows)
{
	size_t qdim = w->a.heads * (w->a.nope + w->a.rope), odim = w->a.heads * w->a.v;

	return (struct attn_seg){ .q = w->q + pos0 * qdim, .ldq = qdim, .out = out + pos0 * odim, .ldo = odim,
		.rows = rows, .pos0 = pos0, .kv = { w->pages, w->page, w->row_ld, w->kv_type } };
}

/* All rows as segments of `chunk` rows in one call. */
static void together(struct kern_stream *s, struct world *w, attn_fn *fn, float *out, size_t chunk)
{
	struct attn_seg segs[TOKENS];
	size_t count = 0;

	for (size_t r = 0; r < TOKENS; r += chunk)
		segs[count++] = seg_at(w, out, r, TOKENS - r < chunk ? TOKENS - r : chunk);
	fn(s, &w->a, segs, count);
}

/* Pages end after 16, 64 or 128 tokens. */
static bool at_border(size_t first, size_t rows)
{
	static const size_t pos[] = { 0, 1, 15, 16, 63, 64, 65, 127, 128, 200 };

	for (size_t i = 0; i < ARRAY_LEN(pos); i++)
		if (pos[i] >= first && pos[i] < first + rows)
			return true;
	return false;
}

/* Those segments that lie at a border of pages, each in its own call with NaN in the cache beyond it. */
static void one_by_one(struct kern_stream *s, struct world *w, attn_fn *fn, float *out, size_t chunk)
{
	for (size_t r = 0; r < TOKENS; r += chunk) {
		struct attn_seg seg = seg_at(w, out, r, TOKENS - r < chunk ? TOKENS - r : chunk);
		if (!at_border(r, seg.rows))
			continue;
		memset(seg.out, 0xff, seg.rows * seg.ldo * sizeof(float));
		fill_pages(w, r + seg.rows, true);
		fn(s, &w->a, &seg, 1);
	}
	fill_pages(w, TOKENS, false);
}

/* Largest difference to the reference relative to the largest value. */
static double error_of(struct world *w, const float *out, const size_t *pos, size_t count)
{
	double worst = 0, top = 0, *want = mem_calloc(w->a.v, sizeof(double));

	for (size_t i = 0; i < count; i++)
		for (size_t h = 0; h < w->a.heads; h++) {
			reference(w, pos[i], h, want);
			for (size_t v = 0; v < w->a.v; v++) {
				double d = fabs(out[(pos[i] * w->a.heads + h) * w->a.v + v] - want[v]);
				worst = d > worst || isnan(d) ? d : worst;
				top = fabs(want[v]) > top ? fabs(want[v]) : top;
			}
		}
	free(want);
	return worst / top;
}

static void test_form(struct kern_stream *s, struct kern_stream *alone, struct world *w, const char *name, attn_fn *fn)
{
	static const size_t pos[] = { 0, 1, 16, 63, 64, 65, 127, 128, 200, TOKENS - 1 };
	static const size_t chunks[] = { 1, 7, 64, TOKENS };
	size_t n = TOKENS * w->a.heads * w->a.v, bytes = n * sizeof(float);
	float *all = mem_calloc(n, sizeof(float)), *some = mem_calloc(n, sizeof(float));
	double limit = w->a.round ? 2e-2 : 4e-6, err;
	bool same = true;

	together(s, w, fn, all, TOKENS);
	err = error_of(w, all, pos, ARRAY_LEN(pos));
	tap_ok(err < limit, "%s: relative error %.1e < %.0e", name, err, limit);
	for (size_t i = 0; i < ARRAY_LEN(chunks); i++) {
		memset(some, 0xff, bytes);
		together(i % 2 ? alone : s, w, fn, some, chunks[i]);
		same &= memcmp(all, some, bytes) == 0;
		if (!same)
			tap_diag("segments of %zu differ", chunks[i]);
		one_by_one(i % 2 ? s : alone, w, fn, some, chunks[i]);
		same &= memcmp(all, some, bytes) == 0;
		if (!same)
			tap_diag("calls with %zu rows differ", chunks[i]);
	}
	tap_ok(same, "%s: chunks of 1, 7, 64, all rows, 1 and 3 threads, NaN beyond the row: equal bits", name);
	free(all);
	free(some);
}

/* Segments of unlike sequences in one call give what each gives alone. */
static void test_segments(struct kern_stream *s, struct world *w, const char *name, attn_fn *fn)
{
	static const size_t pos[MAX_SEGS] = { 5, 64, 0, 130, 197, 1 }, rows[MAX_SEGS] = { 1, 3, 1, 70, 2, 199 };
	struct attn_seg segs[MAX_SEGS];
	size_t n = TOKENS * w->a.heads * w->a.v;
	float *together = mem_calloc(n * MAX_SEGS, sizeof(float)), *alone = mem_calloc(n * MAX_SEGS, sizeof(float));

	for (size_t i = 0; i < MAX_SEGS; i++)
		segs[i] = seg_at(w, together + i * n, pos[i], rows[i]);
	fn(s, &w->a, segs, MAX_SEGS);
	for (size_t i = 0; i < MAX_SEGS; i++) {
		segs[i] = seg_at(w, alone + i * n, pos[i], rows[i]);
		fn(s, &w->a, segs + i, 1);
	}
	tap_ok(memcmp(together, alone, n * MAX_SEGS * sizeof(float)) == 0,
		"%s: segments together and alone: equal bits", name);
	free(together);
	free(alone);
}

static void test_world(struct kern_stream *s, struct kern_stream *alone, const struct attn_shape *a, size_t page,
	enum dtype kv, enum dtype kv_b)
{
	struct world w;
	char name[200];

	world_new(&w, a, page, kv, kv_b);
	for (int form = 0; form < 2; form++) {
		attn_fn *fn = form ? kern_attn_absorbed : kern_attn_expanded;
		snprintf(name, sizeof(name), "%s %s, %zu heads %zu+%zu, v %zu, lora %zu, page %zu, cache %s, kv_b %s%s",
			kern_set_name(s), form ? "absorbed" : "expanded", a->heads, a->nope, a->rope, a->v, a->lora,
				page,
			dtype_name(kv), dtype_name(kv_b), a->round ? ", BF16 arithmetic" : "");
		test_form(s, alone, &w, name, fn);
		test_segments(s, &w, name, fn);
	}
	world_free(&w);
}

static void test_set(const char *set)
{
	static const struct attn_shape shapes[] = {
		{ .heads = 5, .nope = 48, .rope = 32, .v = 32, .lora = 128, .scale = 0.11f },
		{ .heads = 3, .nope = 21, .rope = 10, .v = 19, .lora = 75, .scale = 0.2f },
		{ .heads = 2, .nope = 32, .rope = 64, .v = 48, .lora = 192, .scale = 0.0883f },
		{ .heads = 18, .nope = 16, .rope = 7, .v = 33, .lora = 48, .scale = 0.2f },
	};
	/* of the example model and of V2-Lite */
	static const struct attn_shape real[] = {
		{ .heads = 4, .nope = 64, .rope = 32, .v = 64, .lora = 128, .scale = 0.102f, .round = true },
		{ .heads = 16, .nope = 128, .rope = 64, .v = 128, .lora = 512, .scale = 0.0722f, .round = true },
	};
	static const enum dtype weights[] = { DT_F32, DT_BF16, DT_F8_E4M3 };
	struct kern_stream *s = NULL, *alone = NULL;
	struct ds_err err;

	if (kern_stream_new(&s, 3, set, &err) || kern_stream_new(&alone, 1, set, &err)) {
		tap_skip("%s: %s", set, err.text);
		kern_stream_free(s);
		return;
	}
	if (strcmp(kern_set_name(s), set) == 0)
		for (size_t i = 0; i < (strcmp(set, "scalar") ? 12 : 7); i++) {
			struct attn_shape a = shapes[i % ARRAY_LEN(shapes)];
			a.round = i % 6 >= 3;
			test_world(s, alone, &a, i % 4 == 1 ? 16 : i == 3 ? 128 : 64, i % 2 ? DT_F32 : DT_BF16,
				weights[i % 3]);
		}
	for (size_t i = 0; i < ARRAY_LEN(real) && strcmp(set, "scalar") && strcmp(set, "avx512") && !tap_slow(); i++)
		test_world(s, alone, &real[i], 64, DT_BF16, DT_F8_E4M3);
	kern_stream_free(s);
	kern_stream_free(alone);
}

int main(void)
{
	static const char *const sets[] = { "scalar", "avx2", "avx512", "avx512bf16" };

	for (size_t i = 0; i < ARRAY_LEN(sets); i++)
		test_set(sets[i]);
	return tap_done();
}

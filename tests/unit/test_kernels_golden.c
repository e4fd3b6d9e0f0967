/*
 * Every kernel set that this CPU runs against the goldens of the reference (tests/golden/unit): e4m3, quantisation, the
 * scaled product, norm, SwiGLU, rope, routing.
 */
#include <float.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "base/random.h"
#include "kernels/kernels.h"
#include "normal.h"
#include "st.h"

#define GOLDEN "tests/golden/unit/"

static const char *const sets[] = { "scalar", "avx2", "avx512f", "avx512bf16" };
static struct kern_stream *s;
static const char *set;

static void *need(size_t bytes)
{
	void *p = mem_aligned(bytes + 1);

	if (!p)
		tap_bail("no memory");
	return p;
}

static bool same(const void *a, const void *b, size_t bytes)
{
	return memcmp(a, b, bytes) == 0;
}

/* Bit equality, but any NaN is as good as another. */
static bool same_floats(const float *a, const float *b, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (!same(a + i, b + i, sizeof(*a)) && !(isnan(a[i]) && isnan(b[i])))
			return false;
	return true;
}

/* ---- e4m3 ---- */

/* Each code through the product: a weight row that holds it alone among zeros, and a row of equal activations. */
static void test_decode(const float *want)
{
	static uint8_t codes[256][384];
	float scale[6] = { 1, 1, 1, 1, 1, 1 }, y[256], *x = need(384 * sizeof(float)), expect[256];
	void *buf = need(kern_pack_bytes(ACT_F8, 1, 384));
	struct mat w = { .data = codes, .scale = scale, .rows = 256, .cols = 384, .ld = 384, .scale_ld = 3,
		.type = DT_F8_E4M3 };

	for (size_t i = 0; i < 384; i++)
		x[i] = 448;
	for (int kind = 0; kind < 2; kind++)
		for (size_t at = 0; at < 384; at += 41) {
			struct act a;
			struct gemm g = { .y = y, .ldy = 256, .x = &a, .w = &w, .rows = 1 };

			memset(codes, 0, sizeof(codes));
			for (size_t i = 0; i < 256; i++) {
				codes[i][at] = (uint8_t)i;
				expect[i] = want[i] * 448 + 0.0f;
			}
			kern_pack(s, kind ? ACT_F8 : ACT_F32, false, x, 1, 384, 384, buf, &a);
			kern_gemm(s, &g, 1);
			for (size_t i = 0; i < 256; i++)
				y[i] += 0.0f; /* -0 */
			if (!same_floats(y, expect, 256))
				tap_ok(false, "%s: e4m3 codes at column %zu, %s", set, at, kind ? "F8" : "F32");
		}
	tap_ok(true, "%s: e4m3 codes in products", set);
	free(x);
	free(buf);
}

static void test_e4m3(void)
{
	struct st f = st_open(GOLDEN "e4m3.safetensors");
	float *decode = st_get(&f, "decode", NULL), *x = st_get(&f, "encode.x", NULL), got[256];
	uint8_t *codes = st_get(&f, "encode.codes", NULL);
	size_t wrong = 0, tried = 0;

	for (int i = 0; i < 256; i++)
		got[i] = e4m3_to_f32((uint8_t)i);
	tap_ok(same_floats(got, decode, 256), "e4m3 decoded");
	for (size_t i = 0; i < 10000; i++)
		wrong += f32_to_e4m3(x[i]) != codes[i];
	tap_is_int((long long)wrong, 0, "e4m3 encoded");
	test_decode(decode);
	wrong = 0;
	/* through the quantiser: 448 in each block makes its scale 1; what is larger would change that */
	for (size_t i = 0; i < 10000;) {
		float row[200] = { 448 };
		uint8_t expect[200] = { 0x7e };
		void *buf = need(kern_pack_bytes(ACT_F8, 1, 200));
		struct act a;

		for (size_t k = 1; k < 200 && i < 10000; i++) {
			if (fabsf(x[i]) > 448)
				continue;
			if (k == 128) {
				row[k] = 448;
				expect[k++] = 0x7e;
			}
			row[k] = x[i];
			expect[k++] = codes[i];
			tried++;
		}
		kern_pack(s, ACT_F8, false, row, 1, 200, 200, buf, &a);
		wrong += !same(a.data, expect, 200) || a.scale[0] != 1;
		free(buf);
	}
	tap_ok(wrong == 0 && tried > 5000, "%s: %zu values through the quantiser", set, tried);
	free(decode);
	free(x);
	free(codes);
	st_close(&f);
}

/* ---- quantised products ---- */

enum { M = 24, K = 384, N = 136, B = 3 };

static void test_scaled(const struct st *f, const char *tag, bool ue8m0, const float *x, const struct mat *w)
{
	char name[40];
	uint8_t *codes;
	float *scales, *want, y[M * N];
	void *buf = need(kern_pack_bytes(ACT_F8, M, K));
	double worst = 0;
	struct act a;

	snprintf(name, sizeof(name), "x%s.codes", tag);
	codes = st_get(f, name, NULL);
	snprintf(name, sizeof(name), "x%s.scales", tag);
	scales = st_get(f, name, NULL);
	snprintf(name, sizeof(name), "y%s", tag);
	want = st_get(f, name, NULL);
	kern_pack(s, ACT_F8, ue8m0, x, M, K, K, buf, &a);
	tap_ok(a.ld == K && same(a.data, codes, M * K), "%s: x%s.codes", set, tag);
	tap_ok(same(a.scale, scales, M * B * sizeof(float)), "%s: x%s.scales", set, tag);
	kern_gemm(s, &(struct gemm){ .y = y, .ldy = N, .x = &a, .w = w, .rows = M }, 1);
	for (size_t m = 0; m < M; m++)
		for (size_t n = 0; n < N; n++) {
			double abs = 0, d;

			for (size_t k = 0; k < K; k++)
				abs += fabs((double)e4m3_to_f32(codes[m * K + k]) * scales[m * B + k / 128] *
				            e4m3_to_f32(((const uint8_t *)w->data)[n * K + k]) *
				            w->scale[n / 128 * B + k / 128]);
			d = fabs((double)y[m * N + n] - want[m * N + n]) / (abs + DBL_MIN);
			if (!(d <= worst))
				worst = d;
		}
	tap_ok(worst <= 1e-6, "%s: y%s within %.2g of the sum of |terms|", set, tag, worst);
	free(codes);
	free(scales);
	free(want);
	free(buf);
}

static void test_quant(void)
{
	struct st f = st_open(GOLDEN "quant.safetensors");
	float *x = st_get(&f, "x", NULL), *scale = st_get(&f, "w.scale_inv", NULL);
	float *dequant = st_get(&f, "w.dequant", NULL);
	uint8_t *codes = st_get(&f, "w.codes", NULL);
	struct mat w = { .data = codes, .scale = scale, .rows = N, .cols = K, .ld = K, .scale_ld = B,
		.type = DT_F8_E4M3 };
	float *wide = need(N * K * sizeof(float)), column[N];
	uint32_t ids[N];
	struct act a = { .kind = ACT_F32, .rows = 1, .cols = K, .ld = K };
	float *unit = need(K * sizeof(float));
	bool ok = true;

	test_scaled(&f, "", false, x, &w);
	test_scaled(&f, ".ue8m0", true, x, &w);
	for (uint32_t i = 0; i < N; i++)
		ids[i] = i;
	kern_embed(s, wide, K, &w, ids, N);
	tap_ok(same(wide, dequant, N * K * sizeof(float)), "%s: w.dequant as an embedding", set);
	for (size_t k = 0; k < K; k++) {
		memset(unit, 0, K * sizeof(float));
		unit[k] = 1;
		a.data = unit;
		kern_gemm(s, &(struct gemm){ .y = column, .ldy = N, .x = &a, .w = &w, .rows = 1 }, 1);
		for (size_t n = 0; n < N; n++)
			ok &= column[n] == dequant[n * K + k];
	}
	tap_ok(ok, "%s: w.dequant through products with unit vectors", set);
	free(x);
	free(scale);
	free(dequant);
	free(codes);
	free(wide);
	free(unit);
	st_close(&f);
}

/* ---- norm, SwiGLU, rope ---- */

/* Largest relative error to float64, |want| below `least` counted as `least`. */
static double worst_of(const float *y, const double *want, size_t n, double least)
{
	double worst = 0;

	for (size_t i = 0; i < n; i++) {
		double d = fabs(y[i] - want[i]) / fmax(fabs(want[i]), least);

		if (!(d <= worst))
			worst = d;
	}
	return worst;
}

static void test_pieces(void)
{
	struct st f = st_open(GOLDEN "pieces.safetensors");
	float *x = st_get(&f, "rmsnorm.x", NULL), *weight = st_get(&f, "rmsnorm.weight", NULL), y[6 * 512], z[6 * 512];
	double *norm = st_get(&f, "rmsnorm.y_f64", NULL), *swiglu = st_get(&f, "swiglu.y_f64", NULL);
	float *gate = st_get(&f, "swiglu.gate", NULL), *up = st_get(&f, "swiglu.up", NULL);
	struct mat w = { .data = weight, .rows = 1, .cols = 512, .ld = 512, .type = DT_F32 };
	double worst;
	bool ok = true;

	kern_rmsnorm(s, y, 512, x, 512, &w, 1e-6f, 6, 512, false);
	worst = worst_of(y, norm, 6 * 512, 1e-30);
	tap_ok(worst < 4e-7, "%s: rmsnorm, relative error %.2g", set, worst);
	kern_rmsnorm(s, z, 512, x, 512, &w, 1e-6f, 6, 512, true);
	kern_round(s, y, 6 * 512);
	tap_ok(same(y, z, sizeof(y)), "%s: rmsnorm rounded", set);
	kern_swiglu(s, y, 512, gate, 512, up, 512, 4, 512, false);
	worst = worst_of(y, swiglu, 4 * 512, 1e-30);
	tap_ok(worst < 6e-7, "%s: SwiGLU, relative error %.2g", set, worst);
	kern_swiglu(s, y, 512, gate, 512, up, 512, 4, 512, true);
	for (size_t i = 0; i < 4 * 512; i++) {
		float silu = (float)(gate[i] / (1 + exp(-(double)gate[i])));

		/* either neighbour: the silu before rounding may differ in its last bit */
		ok &= fabsf(y[i] - bf16_to_f32(f32_to_bf16(silu)) * up[i]) <= 0x1p-7f * fabsf(y[i]) &&
		      y[i] == bf16_to_f32(f32_to_bf16(y[i]));
	}
	tap_ok(ok, "%s: SwiGLU rounded", set);
	free(x);
	free(weight);
	free(norm);
	free(swiglu);
	free(gate);
	free(up);
	st_close(&f);
}

static void test_rope(const char *name, size_t dim)
{
	enum { POS = 20, HEADS = 3 };
	struct st f = st_open(GOLDEN "rope.safetensors");
	char key[60];
	float *c, *sn, *x, *want, *cs = need(POS * dim * sizeof(float));
	double worst = 0;

	snprintf(key, sizeof(key), "%s.cos_f32", name);
	c = st_get(&f, key, NULL);
	snprintf(key, sizeof(key), "%s.sin_f32", name);
	sn = st_get(&f, key, NULL);
	snprintf(key, sizeof(key), "%s.x", name);
	x = st_get(&f, key, NULL);
	snprintf(key, sizeof(key), "%s.y", name);
	want = st_get(&f, key, NULL);
	for (size_t i = 0; i < POS * dim / 2; i++) {
		cs[2 * i] = c[i];
		cs[2 * i + 1] = sn[i];
	}
	kern_rope(s, x, HEADS * dim, dim, HEADS, dim, cs, POS, false);
	for (size_t i = 0; i < POS * HEADS * dim; i++)
		worst = fmax(worst, fabs((double)x[i] - want[i]));
	tap_ok(worst < 1e-6, "%s: rope %s, error %.2g", set, name, worst);
	free(c);
	free(sn);
	free(x);
	free(want);
	free(cs);
	st_close(&f);
}

/* ---- routing ---- */

static void test_routing(const char *file, const struct route *shape, size_t rows)
{
	char path[100];
	struct st f;
	float *logits, *want, *bias = NULL, *weights = need(rows * shape->top_k * sizeof(float));
	uint32_t *ids = need(rows * shape->top_k * sizeof(*ids));
	int32_t *want_ids;
	struct route r = *shape;
	double worst = 0;

	snprintf(path, sizeof(path), GOLDEN "%s.safetensors", file);
	f = st_open(path);
	logits = st_get(&f, "logits", NULL);
	want_ids = st_get(&f, "ids", NULL);
	want = st_get(&f, "weights", NULL);
	if (r.method == TOPK_NOAUX_TC)
		r.bias = bias = st_get(&f, "bias", NULL);
	kern_route(s, &r, logits, rows, ids, weights);
	tap_ok(same(ids, want_ids, rows * r.top_k * sizeof(*ids)), "%s: %s: ids", set, file);
	for (size_t i = 0; i < rows * r.top_k; i++)
		worst = fmax(worst, fabs((double)weights[i] - want[i]) / r.scale);
	tap_ok(worst < 1.5e-7, "%s: %s: weights, error %.2g", set, file, worst);
	free(logits);
	free(want);
	free(want_ids);
	free(bias);
	free(weights);
	free(ids);
	st_close(&f);
}

static size_t number(json_t *c, const char *key)
{
	return (size_t)json_integer_value(json_object_get(c, key));
}

static float real_at(json_t *a, size_t i)
{
	return (float)json_number_value(json_array_get(a, i));
}

/* One corner case: sets of experts, and by expert their weights where torch chose the same. */
static bool topk_case(json_t *c)
{
	json_t *logits = json_object_get(c, "logits"), *bias = json_object_get(c, "bias");
	bool as_torch = json_is_true(json_object_get(c, "same_set_as_lowest_index_first")), ok = true;
	bool soft = strcmp(json_string_value(json_object_get(c, "scoring_func")), "softmax") == 0;
	float x[256], b[256], w[32];
	uint32_t ids[32];
	struct route r = { .score = soft ? SCORE_SOFTMAX : SCORE_SIGMOID, .experts = number(c, "n_experts"),
		.top_k = number(c, "top_k"), .groups = number(c, "n_group"), .topk_groups = number(c, "topk_group"),
		.normalise = json_is_true(json_object_get(c, "norm_topk_prob")),
		.scale = (float)json_number_value(json_object_get(c, "routed_scaling_factor")) };

	if (r.experts > 256 || r.top_k > 32)
		return false;
	r.method = json_is_array(bias) ? TOPK_NOAUX_TC : r.groups > 1 ? TOPK_GROUP_LIMITED : TOPK_GREEDY;
	r.bias = json_is_array(bias) ? b : NULL;
	for (size_t row = 0; row < json_array_size(logits); row++) {
		json_t *best = json_array_get(json_object_get(c, "lowest_index_first_ids"), row);
		json_t *theirs = json_array_get(json_object_get(c, "ids"), row);
		json_t *weights = json_array_get(json_object_get(c, "weights"), row);

		for (size_t e = 0; e < r.experts; e++) {
			x[e] = real_at(json_array_get(logits, row), e);
			b[e] = real_at(bias, e);
		}
		kern_route(s, &r, x, 1, ids, w);
		for (size_t k = 0; k < r.top_k; k++) {
			bool found = false;

			for (size_t i = 0; i < r.top_k; i++) {
				found |= (uint32_t)json_integer_value(json_array_get(best, i)) == ids[k];
				if (as_torch && (uint32_t)json_integer_value(json_array_get(theirs, i)) == ids[k])
					ok &= fabsf(real_at(weights, i) - w[k]) <= 3e-7f * r.scale;
			}
			ok &= found;
		}
	}
	return ok;
}

static void test_topk(void)
{
	json_t *all = json_load_file(GOLDEN "topk.json", 0, NULL);

	if (!all)
		tap_bail("cannot read topk.json");
	for (size_t i = 0; i < json_array_size(all); i++) {
		json_t *c = json_array_get(all, i);

		tap_ok(topk_case(c), "%s: routing: %s", set, json_string_value(json_object_get(c, "name")));
	}
	json_decref(all);
}

/* NaN and infinities: ids stay valid and distinct. */
static void test_route_nan(void)
{
	struct route r = { .score = SCORE_SIGMOID, .method = TOPK_NOAUX_TC, .experts = 16, .top_k = 8, .groups = 4,
		.topk_groups = 2, .normalise = true, .scale = 2.5f };
	float x[3][16], bias[16] = { 0 }, w[3][8];
	uint32_t ids[3][8];
	bool ok = true;

	r.bias = bias;
	for (size_t e = 0; e < 16; e++) {
		x[0][e] = NAN;
		x[1][e] = e == 5 ? NAN : -INFINITY;
		x[2][e] = e == 3 ? INFINITY : 0;
	}
	for (int score = SCORE_SOFTMAX; score <= SCORE_SIGMOID; score++) {
		r.score = score == SCORE_SIGMOID ? SCORE_SIGMOID : SCORE_SOFTMAX;
		kern_route(s, &r, x[0], 3, ids[0], w[0]);
		for (size_t i = 0; i < 3; i++)
			for (size_t k = 0; k < 8; k++) {
				ok &= ids[i][k] < 16;
				for (size_t j = 0; j < k; j++)
					ok &= ids[i][j] != ids[i][k];
			}
	}
	tap_ok(ok, "%s: routing of NaN and infinities gives distinct experts", set);
}

/* ---- sampling, sums ---- */

static void test_argmax(void)
{
	enum { COLS = 1003 };
	float x[COLS];
	uint32_t at;
	double lse;
	bool ok = true;

	for (size_t i = 0; i < COLS; i++)
		x[i] = 5 * (float)normal_at(3, i);
	for (size_t n = 1; n < COLS; n += 1 + n / 5) {
		double part = 0;
		size_t best = 0;

		for (size_t i = 0; i < n; i++) {
			part += exp(x[i]);
			best = x[i] > x[best] ? i : best;
		}
		kern_argmax_lse(s, x, COLS, 1, n, &at, &lse);
		ok &= at == best && fabs(lse - log(part)) < 2e-7;
	}
	tap_ok(ok, "%s: argmax and log of the sum of exponentials", set);
	x[700] = x[200] = x[201] = 100;
	kern_argmax_lse(s, x, COLS, 1, COLS, &at, &lse);
	tap_ok(at == 200 && fabs(lse - 100 - log(3)) < 1e-9, "%s: the first of equal maxima", set);
	x[700] = x[201] = 85;
	kern_argmax_lse(s, x, COLS, 1, COLS, &at, &lse);
	tap_ok(fabs((lse - 100) / (2 * exp(-15)) - 1) < 1e-6, "%s: the log of a probability near 1", set);
	x[100] = NAN;
	kern_argmax_lse(s, x, COLS, 1, COLS, &at, &lse);
	tap_ok(at == 200 && isnan(lse), "%s: NaN never wins, and shows in the sum", set);
	for (size_t i = 0; i < COLS; i++)
		x[i] = i == 0 ? NAN : -INFINITY;
	kern_argmax_lse(s, x, COLS, 1, COLS, &at, &lse);
	tap_ok(at == 1 && lse == -INFINITY, "%s: nothing but -inf", set);
}

static void test_combine(void)
{
	enum { ROWS = 70, COLS = 300, TOP = 3 };
	float *x = need(ROWS * TOP * COLS * sizeof(float)), *y = need(ROWS * COLS * sizeof(float)), w[ROWS * TOP];
	uint32_t slot[ROWS * TOP];
	bool ok = true;

	for (size_t i = 0; i < ROWS * TOP * COLS; i++)
		x[i] = (float)normal_at(4, i);
	for (size_t i = 0; i < ROWS * COLS; i++)
		y[i] = (float)i;
	for (size_t i = 0; i < ROWS * TOP; i++) {
		slot[i] = (uint32_t)(i * 7 % (ROWS * TOP));
		w[i] = (float)random_unit(5, i);
	}
	kern_combine(s, y, COLS, x, COLS, slot, w, TOP, ROWS, COLS, false);
	for (size_t r = 0; r < ROWS; r++)
		for (size_t c = 0; c < COLS; c++) {
			float sum = 0;

			for (size_t k = 0; k < TOP; k++)
				sum += w[r * TOP + k] * x[slot[r * TOP + k] * COLS + c];
			ok &= y[r * COLS + c] == (float)(r * COLS + c) + sum;
		}
	tap_ok(ok, "%s: combine adds in order", set);
	kern_add(s, y, x, ROWS * COLS, true);
	for (size_t i = 0; i < ROWS * COLS; i++)
		ok &= y[i] == bf16_to_f32(f32_to_bf16(y[i]));
	tap_ok(ok, "%s: add, rounded", set);
	free(x);
	free(y);
}

static void test_set(void)
{
	const struct route v3 = { SCORE_SIGMOID, TOPK_NOAUX_TC, 256, 8, 8, 4, true, 2.5f, NULL };
	const struct route v2 = { SCORE_SOFTMAX, TOPK_GROUP_LIMITED, 160, 6, 8, 3, false, 16.0f, NULL };
	const struct route lite = { SCORE_SOFTMAX, TOPK_GREEDY, 64, 6, 1, 1, false, 1.0f, NULL };

	test_e4m3();
	test_quant();
	test_pieces();
	test_rope("v3", 64);
	test_rope("plain64", 64);
	test_rope("v3_dim32", 32);
	test_rope("plain16_theta50000", 16);
	test_routing("routing_v3", &v3, 200);
	test_routing("routing_v2", &v2, 100);
	test_routing("routing_v2lite", &lite, 100);
	test_topk();
	test_route_nan();
	test_argmax();
	test_combine();
}

int main(void)
{
	for (size_t i = 0; i < ARRAY_LEN(sets); i++) {
		struct ds_err err;

		set = sets[i];
		if (kern_stream_new(&s, 2, set, &err)) {
			tap_skip("%s", err.text);
			continue;
		}
		test_set();
		kern_stream_free(s);
	}
	return tap_done();
}

/*
 * Faults that users of other engines have met, and that no other test here looks at with their own numbers; each test
 * names its fault.  Kernels: with every set that this CPU runs.
 */
#include <jansson.h>
#include <math.h>

#include "base/mem.h"
#include "base/random.h"
#include "kernels/kernels.h"
#include "model/tokenizer.h"
#include "tap.h"

#define TINY "examples/models/tiny-r1/tokenizer.json"

static const char *const sets[] = { "scalar", "avx2", "avx512f", "avx512bf16" };
static struct kern_stream *s;
static const char *set;

/* ---- FP8 blocks ---- */

/* An FP8 weight [rows, cols] of any codes but NaN, a scale of its own for each block of 128 x 128. */
static struct mat fp8(size_t rows, size_t cols)
{
	struct mat w = { .rows = rows, .cols = cols, .ld = cols, .scale_ld = (cols + 127) / 128, .type = DT_F8_E4M3 };
	size_t scales = (rows + 127) / 128 * w.scale_ld;
	uint8_t *codes = mem_aligned(rows * cols + 64);
	float *scale = mem_aligned(scales * sizeof(*scale) + 64);

	for (size_t i = 0; i < rows * cols; i++) {
		codes[i] = (uint8_t)random_bits(1, i);
		if ((codes[i] & 127) == 127)
			codes[i] ^= 1;
	}
	for (size_t i = 0; i < scales; i++)
		scale[i] = ldexpf(1.0f + (float)i / 64.0f, (int)(random_bits(2, i) % 5) - 6);
	w.data = codes;
	w.scale = scale;
	return w;
}

static void fp8_free(struct mat *w)
{
	free((void *)(uintptr_t)w->data);
	free((void *)(uintptr_t)w->scale);
}

/* The fault: blocks of ceil(rows / rows of scales) = 125 rows; rows 125 to 127 take the next block's scale. */
static void test_partial_blocks(void)
{
	enum { ROWS = 1000, COLS = 256 };
	struct mat w = fp8(ROWS, COLS);
	float x[COLS] = { 0 }, y[ROWS];
	struct act a = { .kind = ACT_F32, .rows = 1, .cols = COLS, .ld = COLS, .data = x };
	size_t wrong = 0;

	for (size_t c = 0; c < COLS; c += 51) {
		x[c] = 1;
		kern_gemm(s, &(struct gemm){ .y = y, .ldy = ROWS, .x = &a, .w = &w, .rows = 1 }, 1);
		for (size_t r = 0; r < ROWS; r++) {
			float code = e4m3_to_f32(((const uint8_t *)w.data)[r * COLS + c]);

			wrong += y[r] != code * w.scale[r / 128 * 2 + c / 128];
		}
		x[c] = 0;
	}
	tap_is_int((long long)wrong, 0, "1000 rows with 8 rows of scales: blocks are 128 rows, the last one 104");
	fp8_free(&w);
}

/* The fault: kv_a_proj of 576 rows is no multiple of 128, so it was refused, or its last rows were left out. */
static void test_576_rows(void)
{
	enum { ROWS = 576, COLS = 7168, M = 3 };
	struct mat w = fp8(ROWS, COLS);
	float *x = mem_array(M * COLS, sizeof(*x)), *y = mem_array(M * ROWS, sizeof(*y));
	struct act a = { .kind = ACT_F32, .rows = M, .cols = COLS, .ld = COLS, .data = x };
	double worst = 0;

	for (size_t i = 0; i < M * COLS; i++)
		x[i] = (float)random_unit(3, i) - 0.5f;
	for (size_t i = 0; i < M * ROWS; i++)
		y[i] = NAN;
	kern_gemm(s, &(struct gemm){ .y = y, .ldy = ROWS, .x = &a, .w = &w, .rows = M }, 1);
	for (size_t m = 0; m < M; m++)
		for (size_t r = 0; r < ROWS; r++) {
			double want = 0, size = 0;

			for (size_t c = 0; c < COLS; c++) {
				double code = e4m3_to_f32(((const uint8_t *)w.data)[r * COLS + c]);
				double t = (double)x[m * COLS + c] * code * w.scale[r / 128 * w.scale_ld + c / 128];

				want += t;
				size += fabs(t);
			}
			worst = fmax(worst, isnan(y[m * ROWS + r]) ? INFINITY : fabs(y[m * ROWS + r] - want) / size);
		}
	tap_ok(worst < 1e-6, "576 x 7168 with scales 5 x 56: as dequantised first, error %.2g of the sum of |terms|",
		worst);
	free(x);
	free(y);
	fp8_free(&w);
}

/* ---- routing ---- */

static float logit(double p)
{
	return (float)log(p / (1 - p));
}

static bool routed(const struct route *r, const float *logits, const uint32_t *want, const double *weights)
{
	uint32_t ids[8];
	float w[8];
	bool ok = true;

	kern_route(s, r, logits, 1, ids, w);
	for (size_t k = 0; k < r->top_k; k++)
		ok &= ids[k] == want[k] && fabs(w[k] - weights[k]) < 1e-6;
	return ok;
}

/* The fault: one rule of group selection used for all models.  Hand-made scores on which the rules differ. */
static void test_groups(void)
{
	/* four groups of two: the best single score is in group 0, the best sum of two in group 2 */
	static const double p[8] = { .9, .1, .6, .55, .7, .69, .3, .2 };
	static const float bias_up[8] = { 0, 0, 0, 0, 0, 0, .9f, .8f };
	static const float none[8] = { 0 };
	float logits[8], flat[8] = { 0 };
	struct route v3 = { SCORE_SIGMOID, TOPK_NOAUX_TC, 8, 2, 4, 1, false, 1.0f, none };
	struct route v2 = { SCORE_SOFTMAX, TOPK_GROUP_LIMITED, 8, 2, 4, 1, false, 1.0f, NULL };
	double e[8], sum = 0;

	for (size_t i = 0; i < 8; i++)
		logits[i] = logit(p[i]);
	tap_ok(routed(&v3, logits, (uint32_t[]){ 4, 5 }, (double[]){ .7, .69 }),
		"V3: groups by the sum of their two best scores");
	for (size_t i = 0; i < 8; i++)
		sum += e[i] = exp(logits[i]);
	tap_ok(routed(&v2, logits, (uint32_t[]){ 0, 1 }, (double[]){ e[0] / sum, e[1] / sum }),
		"V2: groups by their best score");
	v3.bias = bias_up;
	tap_ok(routed(&v3, logits, (uint32_t[]){ 6, 7 }, (double[]){ .3, .2 }),
		"a bias changes which experts are chosen, not their weights");
	v3.normalise = true;
	v3.scale = 2.5f;
	tap_ok(routed(&v3, logits, (uint32_t[]){ 6, 7 }, (double[]){ 2.5 * .6, 2.5 * .4 }),
		"nor what they are normalised by");
	v3 = (struct route){ SCORE_SIGMOID, TOPK_NOAUX_TC, 8, 3, 4, 2, false, 1.0f, none };
	tap_ok(routed(&v3, flat, (uint32_t[]){ 0, 1, 2 }, (double[]){ .5, .5, .5 }),
		"in ties the lower number, of groups and of experts");
}

/* The fault: a cap of 256 on the number of experts. */
static void test_many_experts(void)
{
	static const size_t counts[] = { 1, 160, 256, 384, 512 };
	static float logits[512];
	const double two[2] = { 1 / (1 + exp(-10)), 1 / (1 + exp(10)) }, one = 1;
	size_t good = 0;

	for (size_t i = 0; i < ARRAY_LEN(counts); i++) {
		size_t n = counts[i];
		struct route r = { SCORE_SOFTMAX, TOPK_GREEDY, n, n > 1 ? 2 : 1, 1, 1, true, 1.0f, NULL };
		uint32_t want[2] = { (uint32_t)n - 1, n > 1 ? (uint32_t)n / 2 : 0 };

		memset(logits, 0, sizeof(logits));
		logits[want[1]] = 20;
		logits[want[0]] = 30;
		good += routed(&r, logits, want, n > 1 ? two : &one);
	}
	tap_is_int((long long)good, ARRAY_LEN(counts), "1, 160, 256, 384 and 512 experts: the last one can be chosen");
}

/* ---- digits ---- */

/* A number of so many digits as a token, which its first `cut` digits and the others make. */
static void add_entry(json_t *vocab, json_t *merges, int number, int digits, int cut)
{
	char text[16], merge[40];

	snprintf(text, sizeof(text), "%0*d", digits, number);
	snprintf(merge, sizeof(merge), "%.*s %s", cut, text, text + cut);
	if (!json_object_get(vocab, text))
		json_object_set_new(vocab, text, json_integer((json_int_t)json_object_size(vocab) + 4));
	json_array_append_new(merges, json_string(merge));
}

/* The example's tokenizer with the digit rule of DeepSeek-V3, and all numbers of two and three digits as tokens. */
static struct tokenizer *with_numbers(void)
{
	json_t *root = json_load_file(TINY, 0, NULL), *model = json_object_get(root, "model");
	json_t *vocab = json_object_get(model, "vocab"), *merges = json_object_get(model, "merges");
	json_t *first = json_array_get(json_object_get(json_object_get(root, "pre_tokenizer"), "pretokenizers"), 0);
	struct tokenizer *t;
	struct ds_err err;
	char *text;

	json_object_set_new(json_object_get(first, "pattern"), "Regex", json_string("\\p{N}{1,3}"));
	for (int i = 0; i < 100; i++)
		add_entry(vocab, merges, i, 2, 1);
	for (int i = 0; i < 2000; i++)
		add_entry(vocab, merges, i / 2, 3, 1 + i % 2);
	text = json_dumps(root, JSON_COMPACT);
	if (!text || tokenizer_parse(&t, text, strlen(text), "numbers.json", &err))
		tap_bail("a tokenizer with numbers: %s", text ? err.text : "no memory");
	free(text);
	json_decref(root);
	return t;
}

static size_t wrong_digits(struct tokenizer *t, const char *digits)
{
	struct ids ids = { 0 };
	struct ds_err err;
	size_t n = strlen(digits), wrong = tokenizer_encode(t, digits, n, &ids, &err) || ids.n != (n + 2) / 3;

	for (size_t i = 0; i < ids.n && !wrong; i++) {
		const char *p;
		size_t len, want = n - 3 * i < 3 ? n - 3 * i : 3;

		wrong += !tokenizer_bytes(t, ids.v[i], false, &p, &len) || len != want ||
			memcmp(p, digits + 3 * i, len) != 0;
	}
	ids_free(&ids);
	return wrong;
}

/* The fault: "501" became three tokens, and the model wrote 5o1. */
static void test_digits(struct tokenizer *t, const char *what)
{
	size_t wrong = 0;

	for (uint64_t i = 0; i < 2000; i++) {
		char digits[8];
		size_t n = 1 + i % 7;

		for (size_t k = 0; k < n; k++)
			digits[k] = (char)('0' + random_bits(5, 8 * i + k) % 10);
		digits[n] = 0;
		wrong += wrong_digits(t, digits);
	}
	tap_ok(wrong == 0 && !wrong_digits(t, "501"),
		"%s: numbers of 1 to 7 digits are cut into threes from the left", what);
}

int main(void)
{
	struct tokenizer *t = with_numbers();
	char dir[1000];
	struct ds_err err;

	for (size_t i = 0; i < ARRAY_LEN(sets); i++) {
		set = sets[i];
		if (kern_stream_new(&s, 2, set, &err)) {
			tap_skip("%s", err.text);
			continue;
		}
		tap_diag("kernels: %s", set);
		test_partial_blocks();
		test_576_rows();
		test_groups();
		test_many_experts();
		kern_stream_free(s);
	}
	test_digits(t, "DeepSeek-V3's rule");
	tokenizer_free(t);
	if (!tap_shared(dir, "tokenizers/deepseek-v3")) {
		tap_skip("DeepSeek-V3's tokenizer is not here (shared data 'tokenizers/deepseek-v3')");
	} else {
		if (tokenizer_open(&t, dir, &err))
			tap_bail("%s", err.text);
		test_digits(t, "DeepSeek-V3's tokenizer");
		tokenizer_free(t);
	}
	return tap_done();
}

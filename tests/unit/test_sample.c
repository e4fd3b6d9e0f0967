/*
 * Sampling: a function of (logits, parameters, history, seed, position).  Every choice is compared with that of a slow
 * one in long double that sorts and sums as the definition says; penalties and log-probabilities also with cases made
 * by hand.
 */
#include <float.h>
#include <math.h>

#include "base/mem.h"
#include "base/random.h"
#include "base/time.h"
#include "engine/sample.h"
#include "normal.h"
#include "tap.h"

enum { SMALL = 1000, LARGE = 129280 };

struct row { size_t vocab; float *x; uint32_t argmax; double lse; };

static const struct sample_params PLAIN = { .temperature = 1.0, .top_p = 1.0, .repetition = 1.0 };

static void measure(struct row *r)
{
	long double sum = 0.0L;

	r->argmax = 0;
	for (uint32_t i = 0; i < r->vocab; i++)
		if (r->x[i] > r->x[r->argmax])
			r->argmax = i;
	for (size_t i = 0; i < r->vocab; i++)
		sum += expl((long double)r->x[i] - (long double)r->x[r->argmax]);
	r->lse = (double)(logl(sum) + (long double)r->x[r->argmax]);
}

/* Normal logits of a given spread; `step` != 0 rounds to multiples of it, so that many are equal. */
static struct row make_row(size_t vocab, double spread, double step, uint64_t seed)
{
	struct row r = { .vocab = vocab, .x = malloc(vocab * sizeof(float)) };

	if (!r.x)
		tap_bail("no memory");
	for (size_t i = 0; i < vocab; i++) {
		double v = spread * (double)normal_at(seed, i);

		r.x[i] = (float)(step > 0.0 ? step * round(v / step) : v);
	}
	measure(&r);
	return r;
}

/* ---- the slow one ---- */

struct slow { size_t vocab; float *x; long double *p; uint32_t *order; };

static const struct slow *sorting;

static int falling(const void *a, const void *b)
{
	uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;
	float x = sorting->x[i], y = sorting->x[j];

	return x > y ? -1 : x < y ? 1 : i < j ? -1 : i > j;
}

static void slow_penalties(struct slow *s, const struct sample_params *p, const struct sample_seen *seen, size_t n)
{
	for (size_t i = 0; i < p->bias_count; i++)
		s->x[p->bias[i].id] += p->bias[i].bias;
	for (size_t i = 0; i < n; i++) {
		float *x = &s->x[seen[i].id];

		*x = (float)(*x > 0.0f ? (double)*x / p->repetition : (double)*x * p->repetition);
		if (!seen[i].count)
			continue;
		*x = (float)((double)*x - p->frequency * seen[i].count);
		*x = (float)((double)*x - p->presence);
	}
}

/* Probabilities of all tokens; the nearest that top-p came to its border goes to *edge. */
static void slow_cuts(struct slow *s, const struct sample_params *p, long double *edge)
{
	long double total = 0.0L, sum = 0.0L;
	size_t n = 0, k = 0;

	*edge = 1.0L;
	sorting = s;
	for (uint32_t i = 0; i < s->vocab; i++)
		s->order[i] = i;
	qsort(s->order, s->vocab, sizeof(*s->order), falling);
	for (; n < s->vocab; n++) {
		uint32_t id = s->order[n];
		long double below = (long double)s->x[id] - (long double)s->x[s->order[0]];
		long double w = expl(below / (long double)p->temperature);

		if (w < (long double)p->min_p || (p->top_k && n >= p->top_k))
			break;
		s->p[id] = w;
		total += w;
	}
	for (; p->top_p < 1.0 && k < n && sum < (long double)p->top_p * total; k++) {
		sum += s->p[s->order[k]];
		if (fabsl(sum / total - (long double)p->top_p) < *edge)
			*edge = fabsl(sum / total - (long double)p->top_p);
	}
	for (size_t i = p->top_p < 1.0 ? k : n; i < s->vocab; i++)
		s->p[s->order[i]] = 0.0L;
	total = p->top_p < 1.0 ? sum : total;
	for (size_t i = 0; i < s->vocab; i++)
		s->p[i] /= total;
}

static struct slow slow_make(const struct row *r, const struct sample_params *p, const struct sample_seen *seen,
	size_t n, long double *edge)
{
	struct slow s = { .vocab = r->vocab, .x = malloc(r->vocab * sizeof(float)),
		.p = calloc(r->vocab, sizeof(long double)), .order = malloc(r->vocab * sizeof(uint32_t)) };

	if (!s.x || !s.p || !s.order)
		tap_bail("no memory");
	memcpy(s.x, r->x, r->vocab * sizeof(float));
	slow_penalties(&s, p, seen, n);
	slow_cuts(&s, p, edge);
	return s;
}

static void slow_free(struct slow *s)
{
	free(s->x);
	free(s->p);
	free(s->order);
}

/* True where `id` is what u draws; a u within 1e-12 of a border may give either side. */
static bool slow_agrees(const struct slow *s, double u, uint32_t id)
{
	long double below = 0.0L;

	for (size_t i = 0; i < id; i++)
		below += s->p[i];
	return s->p[id] > 0.0L && (long double)u > below - 1e-12L && (long double)u < below + s->p[id] + 1e-12L;
}

/* ---- choices against the slow one ---- */

static void compare(struct sampler *s, const struct row *r, const struct sample_params *p, struct sample_history *h,
	size_t draws, const char *what)
{
	const struct sample_seen *seen = NULL;
	size_t n = h ? sample_history_seen(h, &seen) : 0, wrong = 0;
	long double edge;
	struct slow slow = slow_make(r, p, seen, n, &edge);

	for (uint64_t at = 0; at < draws; at++) {
		struct sampled t;

		if (!sample_token(s, p, h, r->x, r->argmax, r->lse, at, &t) ||
		    fabs(t.logprob - ((double)r->x[t.id] - r->lse)) > 1e-9 ||
		    !slow_agrees(&slow, random_unit(p->seed, at), t.id))
			wrong++;
	}
	tap_ok(!wrong || edge < 1e-13L, "vocabulary %zu, %s: the same tokens as the slow one", r->vocab, what);
	if (wrong)
		tap_diag("%zu of %zu differ; top-p came within %Lg of its border", wrong, draws, edge);
	slow_free(&slow);
}

static void test_cuts(struct sampler *s, const struct row *r, size_t draws, const char *rows)
{
	static const double temperatures[] = { 1.0, 0.6, 1.7, 0.01, 100.0 }, top_ps[] = { 1.0, 0.9, 0.3, 1e-9 };
	static const double min_ps[] = { 0.0, 0.05, 0.9, 1.0 };
	static const size_t top_ks[] = { 0, 1, 20, 900 };
	const size_t all = ARRAY_LEN(temperatures) * ARRAY_LEN(top_ps) * ARRAY_LEN(min_ps) * ARRAY_LEN(top_ks);
	struct sample_params p = PLAIN;
	char what[200];

	for (size_t i = 0; i < all; i++) {
		size_t j = i;

		p.temperature = temperatures[j % ARRAY_LEN(temperatures)];
		p.top_p = top_ps[(j /= ARRAY_LEN(temperatures)) % ARRAY_LEN(top_ps)];
		p.min_p = min_ps[(j /= ARRAY_LEN(top_ps)) % ARRAY_LEN(min_ps)];
		p.top_k = top_ks[(j /= ARRAY_LEN(min_ps)) % ARRAY_LEN(top_ks)];
		p.seed = 77 + i;
		snprintf(what, sizeof(what), "%s, temperature %g, top-p %g, min-p %g, top-k %zu", rows, p.temperature,
			p.top_p, p.min_p, p.top_k);
		compare(s, r, &p, NULL, draws, what);
	}
}

static struct sample_history *history_of(const uint32_t *prompt, size_t prompts, const uint32_t *answer, size_t answers)
{
	struct sample_history *h;
	struct ds_err err;

	if (sample_history_new(&h, prompt, prompts, &err))
		tap_bail("%s", err.text);
	for (size_t i = 0; i < answers; i++)
		if (sample_history_add(h, answer[i], &err))
			tap_bail("%s", err.text);
	return h;
}

static void test_penalised_choices(struct sampler *s, const struct row *r, size_t draws)
{
	static const double penalties[][3] = { { 1.3, 0, 0 }, { 0.5, 0, 0 }, { 1, 1.5, 0 }, { 1, 0, 0.7 },
		{ 1, -2, -2 }, { 1.1, 0.5, 0.25 }, { 10, 2, 2 } };
	struct logit_bias bias[] = { { 3, -100.0f }, { 17, 4.5f }, { 999, 2.0f }, { 500, -0.5f } };
	uint32_t prompt[300], answer[300];
	char what[100];

	for (uint32_t i = 0; i < 300; i++) {
		prompt[i] = i * 7919 % 400;
		answer[i] = (uint32_t)(random_bits(5, i) % 150 * 5);
	}
	for (size_t i = 0; i < 2 * ARRAY_LEN(penalties); i++) {
		const double *v = penalties[i / 2];
		struct sample_params p = { .temperature = 0.8, .top_p = i % 2 ? 0.95 : 1.0, .repetition = v[0],
			.presence = v[1], .frequency = v[2], .bias = bias, .bias_count = i % 2 ? ARRAY_LEN(bias) : 0,
			.seed = i };
		struct sample_history *h = history_of(prompt, 300, answer, 300);

		snprintf(what, sizeof(what), "penalties %g %g %g, %zu biases", v[0], v[1], v[2], p.bias_count);
		compare(s, r, &p, h, draws, what);
		sample_history_free(h);
	}
}

/* ---- cases made by hand: four tokens ---- */

static uint32_t greedy(struct sample_params p, const float x[4], uint32_t argmax, const struct sample_history *h)
{
	struct sampler *s;
	struct sampled t;
	struct ds_err err;

	if (sampler_new(&s, 4, &err))
		tap_bail("%s", err.text);
	p.temperature = 0.0;
	if (!sample_token(s, &p, h, x, argmax, 10.0, 3, &t))
		tap_bail("not finite");
	sampler_free(s);
	if (fabs(t.logprob - ((double)x[t.id] - 10.0)) > 1e-12)
		tap_bail("the log-probability is not the model's own");
	return t.id;
}

/* With a history of its own: a prompt of one token, or an answer. */
static uint32_t greedy_after(struct sample_params p, const float x[4], uint32_t argmax, const uint32_t *prompt,
	const uint32_t *answer, size_t answers)
{
	struct sample_history *h = history_of(prompt, prompt != NULL, answer, answers);
	uint32_t id = greedy(p, x, argmax, h);

	sample_history_free(h);
	return id;
}

static void test_by_hand(void)
{
	const float x[4] = { 2.0f, 3.0f, -1.0f, -1.5f };
	const float low[4] = { -3.0f, -2.0f, -2.5f, -9.0f };
	const uint32_t prompt[] = { 1 }, twice[] = { 1, 1, 0 };
	struct sample_history *p = history_of(prompt, 1, NULL, 0), *a = history_of(NULL, 0, twice, 3);
	struct sample_history *both = history_of(prompt, 1, twice, 3);
	struct logit_bias bias[] = { { 2, 4.5f }, { 4, 100.0f } };
	struct sample_params q = PLAIN;

	q.repetition = 1.4;
	tap_is_int(greedy(q, x, 1, p), 1, "repetition 1.4: 3 / 1.4 is still over 2");
	q.repetition = 1.6;
	tap_is_int(greedy(q, x, 1, p), 0, "repetition 1.6 of a prompt token: 3 / 1.6 is below 2");
	tap_is_int(greedy(q, x, 1, a), 1, "of an answer's, it counts once: 3 / 1.6 is over 2 / 1.6");
	tap_is_int(greedy(q, low, 1, p), 2, "a negative logit is multiplied: -2 * 1.6 is below -2.5");
	q.repetition = 0.5;
	tap_is_int(greedy_after(q, low, 1, &(uint32_t){ 0 }, NULL, 0), 0, "repetition below 1 favours");
	q = PLAIN;
	q.presence = 1.1;
	tap_is_int(greedy(q, x, 1, p), 1, "presence does not look at the prompt");
	tap_is_int(greedy_after(q, x, 1, NULL, twice, 2), 0, "presence 1.1: 3 - 1.1 is below 2");
	tap_is_int(greedy(q, x, 1, a), 1, "presence on both: the order stays");
	q = PLAIN;
	q.frequency = 0.9;
	tap_is_int(greedy(q, x, 1, p), 1, "frequency does not look at the prompt");
	tap_is_int(greedy(q, x, 1, a), 1, "frequency 0.9: 3 - 2 * 0.9 is over 2 - 0.9");
	q.frequency = 1.1;
	tap_is_int(greedy(q, x, 1, a), 0, "frequency 1.1: 3 - 2 * 1.1 is below 2 - 1.1");
	q.repetition = 2.0;
	q.frequency = 0.3;
	q.presence = 0.5;
	/* 1: 3 / 2 - 2 * 0.3 - 0.5 = 0.4; 0: 2 / 2 - 0.3 - 0.5 = 0.2; the other way round 0 would win */
	tap_is_int(greedy(q, x, 1, both), 1, "repetition comes first, then what is subtracted");
	q = PLAIN;
	q.bias = bias;
	q.bias_count = 2;
	tap_is_int(greedy(q, x, 1, NULL), 2, "bias: -1 + 4.5 is over 3; a token beyond the vocabulary is passed over");
	q.repetition = 3.0;
	tap_is_int(greedy_after(q, x, 1, &(uint32_t){ 2 }, NULL, 0), 1,
		"bias comes before the penalty: (-1 + 4.5) / 3 is below 3");
	tap_is_int(greedy(PLAIN, (const float[4]){ 1, 1, 1, 1 }, 0, NULL), 0, "of equals the lowest id");
	sample_history_free(p);
	sample_history_free(a);
	sample_history_free(both);
}

/* Equal logits at every border: the lower ids stay. */
static void test_ties(void)
{
	const float x[6] = { 1.0f, 2.0f, 2.0f, 2.0f, 1.0f, 1.0f };
	struct row r = { .vocab = 6, .x = (float *)(uintptr_t)x };
	struct sample_params p = PLAIN;
	bool seen[6] = { false };
	struct sampler *s;
	struct sampled t;
	struct ds_err err;

	measure(&r);
	if (sampler_new(&s, 6, &err))
		tap_bail("%s", err.text);
	p.top_k = 2;
	for (uint64_t i = 0; i < 200; i++) {
		sample_token(s, &p, NULL, x, 1, r.lse, i, &t);
		seen[t.id] = true;
	}
	tap_ok(!seen[0] && seen[1] && seen[2] && !seen[3] && !seen[4] && !seen[5], "top-k among equals: the lower ids");
	p.top_k = 0;
	p.top_p = 0.5; /* one e^2 weighs 0.244 of all: three are needed */
	memset(seen, 0, sizeof(seen));
	for (uint64_t i = 0; i < 200; i++) {
		sample_token(s, &p, NULL, x, 1, r.lse, i, &t);
		seen[t.id] = true;
	}
	tap_ok(!seen[0] && seen[1] && seen[2] && seen[3] && !seen[4] && !seen[5], "top-p among equals");
	sampler_free(s);
}

/* ---- log-probabilities ---- */

static void test_tops(struct sampler *s, const struct row *r, size_t want, const char *what)
{
	struct sample_params p = { .temperature = 0.0, .top_p = 1.0, .repetition = 1.0, .top_logprobs = want };
	struct sampled t;
	bool *used = calloc(r->vocab, 1), same;

	same = used && sample_token(s, &p, NULL, r->x, r->argmax, r->lse, 0, &t) && t.id == r->argmax && t.tops == want;
	for (size_t k = 0; same && k < want; k++) {
		size_t best = r->vocab;

		for (size_t i = 0; i < r->vocab; i++)
			if (!used[i] && !isnan(r->x[i]) && (best == r->vocab || r->x[i] > r->x[best]))
				best = i;
		used[best] = true;
		same = t.top[k].id == best && fabs(t.top[k].logprob - ((double)r->x[best] - r->lse)) < 1e-9;
	}
	tap_ok(same, "the %zu likeliest of %zu, %s", want, r->vocab, what);
	free(used);
}

/* ---- determinism, and what is not a number ---- */

static void test_pure(struct sampler *s, const struct row *r)
{
	struct sample_params p = { .temperature = 0.9, .top_p = 0.95, .min_p = 0.001, .top_k = 500, .repetition = 1.2,
		.presence = 0.3, .frequency = 0.1, .seed = 5, .top_logprobs = 5 }, other = PLAIN;
	uint32_t answer[] = { 1, 2, 3, 2, 1 };
	struct sample_history *h = history_of(answer, 2, answer, 5), *copy;
	struct sampled a, b, noise;
	struct ds_err err;
	size_t same = 0, differ = 0;

	memset(&a, 0, sizeof(a));
	memset(&b, 0, sizeof(b));
	if (sample_history_copy(&copy, h, &err))
		tap_bail("%s", err.text);
	for (uint64_t i = 0; i < 100; i++) {
		sample_token(s, &p, h, r->x, r->argmax, r->lse, i, &a);
		other.seed = i;
		sample_token(s, &other, NULL, r->x, r->argmax, r->lse, i, &noise);
		sample_token(s, &p, copy, r->x, r->argmax, r->lse, i, &b);
		same += !memcmp(&a, &b, sizeof(a));
		p.seed = 6;
		sample_token(s, &p, h, r->x, r->argmax, r->lse, i, &b);
		p.seed = 5;
		differ += a.id != b.id;
	}
	tap_ok(same == 100, "the same arguments give the same bits, whatever was sampled between");
	tap_ok(differ > 50, "another seed gives others (%zu of 100)", differ);
	sample_history_add(copy, 9, &err);
	tap_is_int((long long)sample_history_seen(h, &(const struct sample_seen *){ NULL }), 3, "a copy is its own");
	sample_history_free(h);
	sample_history_free(copy);
	tap_ok(sample_choice_seed(42, 0) == 42, "choice 0 draws with the request's seed");
	differ = 0;
	for (size_t i = 1; i < 128; i++)
		for (size_t j = 0; j < i; j++)
			differ += sample_choice_seed(42, i) != sample_choice_seed(42, j);
	tap_ok(differ == 127 * 128 / 2, "every choice has a seed of its own");
}

static void test_nan(void)
{
	static const float rows[][4] = { { NAN, 1, 2, 3 }, { 3, NAN, NAN, 1 }, { -INFINITY, 1, -INFINITY, -INFINITY } };
	static const uint32_t tops[] = { 3, 0, 1 };
	struct logit_bias bias[] = { { 0, 50.0f }, { 1, -2.0f } };
	struct sampler *s;
	struct sampled t;
	struct ds_err err;
	bool never = true;

	if (sampler_new(&s, 4, &err))
		tap_bail("%s", err.text);
	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		for (unsigned k = 0; k < 16; k++) {
			struct sample_params p = { .temperature = k & 1 ? 1.0 : 0.0, .top_p = k & 2 ? 0.9 : 1.0,
				.top_k = k & 4 ? 2 : 0, .bias = bias, .bias_count = k & 8 ? 2 : 0, .top_logprobs = 4 };

			for (uint64_t at = 0; at < 50; at++) {
				never &= sample_token(s, &p, NULL, rows[i], tops[i], 3.5, at, &t) &&
					isfinite(t.logprob);
				for (size_t j = 0; j < t.tops; j++)
					never &= !isnan(t.top[j].logprob);
			}
		}
	tap_ok(never, "a NaN or an infinitely unlikely token is never chosen");
	tap_ok(!sample_token(s, &PLAIN, NULL, rows[0], 0, 3.5, 0, &t), "an argmax that is NaN is refused");
	tap_ok(!sample_token(s, &PLAIN, NULL, rows[0], 3, (double)NAN, 0, &t), "so is a sum that is NaN");
	sampler_free(s);
}

static void test_extremes(void)
{
	const float big[4] = { 3e38f, -3e38f, 2e38f, 0.0f };
	uint32_t all[] = { 0, 1, 2, 3 };
	struct sample_history *h = history_of(all, 4, all, 4);
	struct sampler *s;
	struct sampled t;
	struct ds_err err;
	bool ok = true;

	if (sampler_new(&s, 4, &err))
		tap_bail("%s", err.text);
	for (unsigned k = 0; k < 32; k++) {
		struct sample_params p = { .temperature = k & 1 ? 1e-320 : 100.0, .top_p = k & 2 ? 1e-300 : 1.0,
			.min_p = k & 4 ? 1.0 : 1e-320, .repetition = k & 8 ? 1e-320 : 10.0,
			.presence = k & 16 ? -2.0 : 2.0, .frequency = 2.0 };

		ok &= sample_token(s, &p, h, big, 0, 3e38, 7, &t) && t.id < 4;
	}
	tap_ok(ok, "the ends of every range give a token");
	sampler_free(s);
	sample_history_free(h);
}

/* Not a test: what a token costs, for who reads the log. */
static void report_cost(struct sampler *s, const struct row *r)
{
	static const struct { const char *name; struct sample_params p; } cases[] = {
		{ "greedy", { .top_p = 1.0 } }, { "temperature", { .temperature = 1.0, .top_p = 1.0 } },
		{ "top-p", { .temperature = 0.6, .top_p = 0.95 } },
		{ "top-k", { .temperature = 0.6, .top_p = 1.0, .top_k = 50 } },
		{ "min-p", { .temperature = 1.0, .top_p = 1.0, .min_p = 0.05 } },
		{ "greedy, penalised", { .top_p = 1.0, .presence = 1.0 } },
		{ "greedy, 20 top logprobs", { .top_p = 1.0, .top_logprobs = 20 } },
	};
	struct sample_history *h = history_of((uint32_t[]){ 1, 2 }, 2, (uint32_t[]){ 3, 4 }, 2);

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		int64_t best = INT64_MAX;

		for (uint64_t k = 0; k < 9; k++) {
			int64_t t = time_mono_ns();
			struct sampled out;

			sample_token(s, &cases[i].p, h, r->x, r->argmax, r->lse, k, &out);
			t = time_mono_ns() - t;
			best = t < best ? t : best;
		}
		tap_diag("%s: %lld us of %zu logits", cases[i].name, (long long)best / 1000, r->vocab);
	}
	sample_history_free(h);
}

int main(void)
{
	struct row normal = make_row(SMALL, 2.0, 0.0, 7), ties = make_row(SMALL, 2.0, 0.5, 8);
	struct row large = make_row(LARGE, 3.0, 0.0, 9), large_ties = make_row(LARGE, 3.0, 0.25, 10);
	size_t few = tap_slow() ? 2 : 8;
	struct sampler *small_s, *large_s;
	struct ds_err err;

	if (sampler_new(&small_s, SMALL, &err) || sampler_new(&large_s, LARGE, &err))
		tap_bail("%s", err.text);
	test_by_hand();
	test_cuts(small_s, &normal, 100, "normal logits");
	test_cuts(small_s, &ties, 100, "many equal logits");
	test_penalised_choices(small_s, &normal, 200);
	test_penalised_choices(large_s, &large, few);
	compare(large_s, &large, &(struct sample_params){ .temperature = 1.0, .top_p = 1.0 }, NULL, few, "no cuts");
	compare(large_s, &large, &(struct sample_params){ .temperature = 0.6, .top_p = 0.95 }, NULL, few, "top-p 0.95");
	compare(large_s, &large_ties, &(struct sample_params){ .temperature = 1.0, .top_p = 0.5, .top_k = 5000 }, NULL,
		few, "equal logits, top-k 5000, top-p 0.5");
	compare(large_s, &large_ties, &(struct sample_params){ .temperature = 1.0, .top_p = 1.0, .min_p = 1e-4 }, NULL,
		few, "equal logits, min-p 0.0001");
	test_ties();
	test_tops(small_s, &ties, 20, "many equal logits");
	test_tops(small_s, &normal, 1, "normal logits");
	test_tops(large_s, &large, 20, "normal logits");
	test_tops(large_s, &large_ties, 20, "many equal logits");
	test_pure(large_s, &large);
	test_nan();
	test_extremes();
	report_cost(large_s, &large);
	sampler_free(small_s);
	sampler_free(large_s);
	free(normal.x);
	free(ties.x);
	free(large.x);
	free(large_ties.x);
	return tap_done();
}

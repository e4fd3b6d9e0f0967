#include "engine/sample.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/random.h"

enum { BLOCK = 64, BUCKETS = 1 << 11 };

static const double FAR = 64.0; /* nats */

/* Candidates lie in three arrays, by rising id.  A key orders as its logit does. */
struct sampler {
	size_t vocab;
	float *adjusted;     /* [vocab] with bias and penalties */
	uint32_t *key, *id;  /* [vocab, rounded up] */
	double *p;           /* [vocab, rounded up] exp((logit - max) / temperature), not normalised */
	double *sum;         /* [blocks] of p */
	double *bucket;      /* [BUCKETS] */
};

int sampler_new(struct sampler **out, size_t vocab, struct ds_err *err)
{
	struct sampler *s = mem_calloc(1, sizeof(*s));
	size_t n = round_up(vocab, BLOCK);

	if (s) {
		s->vocab = vocab;
		s->adjusted = mem_aligned(n * sizeof(*s->adjusted));
		s->key = mem_aligned(n * sizeof(*s->key));
		s->id = mem_aligned(n * sizeof(*s->id));
		s->p = mem_aligned(n * sizeof(*s->p));
		s->sum = mem_aligned(n / BLOCK * sizeof(*s->sum));
		s->bucket = mem_aligned(BUCKETS * sizeof(*s->bucket));
	}
	if (!s || !s->adjusted || !s->key || !s->id || !s->p || !s->sum || !s->bucket) {
		sampler_free(s);
		return err_nomem(err, n * 20, "sampling");
	}
	*out = s;
	return 0;
}

void sampler_free(struct sampler *s)
{
	if (!s)
		return;
	free(s->adjusted);
	free(s->key);
	free(s->id);
	free(s->p);
	free(s->sum);
	free(s->bucket);
	free(s);
}

uint64_t sample_choice_seed(uint64_t seed, size_t choice)
{
	/* Counters far above any position: the seeds of choices are no numbers that choice 0 draws with. */
	return choice ? random_bits(seed, (uint64_t)1 << 63 | choice) : seed;
}

/* ---- bias and penalties ---- */

static float bounded(double x)
{
	return x > (double)FLT_MAX ? FLT_MAX : x < -(double)FLT_MAX && !isinf(x) ? -FLT_MAX : (float)x;
}

static float penalised(const struct sample_params *p, const struct sample_seen *t, float logit)
{
	double r = p->repetition > 0.0 ? p->repetition : 1.0;

	logit = bounded(logit > 0.0f ? (double)logit / r : (double)logit * r);
	if (!t->count)
		return logit;
	logit = bounded((double)logit - p->frequency * (double)t->count);
	return bounded((double)logit - p->presence);
}

static uint32_t largest(const float *x, size_t n, uint32_t argmax)
{
	for (size_t i = 0; i < n; i++)
		if (x[i] > x[argmax] || (x[i] == x[argmax] && i < argmax) || isnan(x[argmax]))
			argmax = (uint32_t)i;
	return argmax;
}

bool sample_needs_history(const struct sample_params *p)
{
	return p->presence < 0.0 || p->presence > 0.0 || p->frequency < 0.0 || p->frequency > 0.0 ||
		(p->repetition > 0.0 && (p->repetition < 1.0 || p->repetition > 1.0));
}

/* The logits to choose from: the model's, or a changed copy, with its own argmax. */
static const float *adjust(struct sampler *s, const struct sample_params *p, const struct sample_history *h,
	const float *logits, uint32_t *argmax)
{
	const struct sample_seen *seen = NULL;
	size_t n = h && sample_needs_history(p) ? sample_history_seen(h, &seen) : 0;

	if (!n && !p->bias_count)
		return logits;
	memcpy(s->adjusted, logits, s->vocab * sizeof(*logits));
	for (size_t i = 0; i < p->bias_count; i++)
		if (p->bias[i].id < s->vocab)
			s->adjusted[p->bias[i].id] =
				bounded((double)s->adjusted[p->bias[i].id] + (double)p->bias[i].bias);
	for (size_t i = 0; i < n; i++)
		if (seen[i].id < s->vocab)
			s->adjusted[seen[i].id] = penalised(p, &seen[i], s->adjusted[seen[i].id]);
	*argmax = largest(s->adjusted, s->vocab, *argmax);
	return s->adjusted;
}

/* ---- weights ---- */

static uint32_t key_of(float x)
{
	union { float f; uint32_t u; } v = { .f = x + 0.0f }; /* -0 is 0 */

	return v.u ^ ((uint32_t)((int32_t)v.u >> 31) | (uint32_t)1 << 31);
}

/* Every logit of at least `least` becomes a candidate; a NaN does not. */
static size_t gather(struct sampler *s, const float *x, double least)
{
	size_t n = 0;

	for (size_t i = 0; i < s->vocab; i++) {
		s->key[n] = key_of(x[i]);
		s->id[n] = (uint32_t)i;
		n += (double)x[i] >= least;
	}
	return n;
}

typedef double lanes __attribute__((vector_size(32)));
typedef int64_t bits __attribute__((vector_size(32)));
typedef int32_t keys __attribute__((vector_size(16)));
typedef float logits4 __attribute__((vector_size(16)));

/* e^x for -745 < x <= 0, within 1e-15 of it: the Taylor polynomial around the nearest multiple of ln 2.  The same bits
 * on every machine, which libm does not promise. */
static void exp_lanes(lanes *v)
{
	const double magic = 0x1.8p52; /* the whole part comes to lie in the lowest bits */
	lanes x = *v, whole = x * 0x1.71547652b82fep+0 + magic, k = whole - magic;
	lanes r = x - k * 0x1.62e42fefa0000p-1 - k * 0x1.cf79abc9e3b3ap-40, y;
	bits scale = ((bits)whole << 52) + (int64_t)0x3ff0000000000000;

	y = 1.0 / 479001600.0 * r + 1.0 / 39916800.0;
	y = y * r + 1.0 / 3628800.0;
	y = y * r + 1.0 / 362880.0;
	y = y * r + 1.0 / 40320.0;
	y = y * r + 1.0 / 5040.0;
	y = y * r + 1.0 / 720.0;
	y = y * r + 1.0 / 120.0;
	y = y * r + 1.0 / 24.0;
	y = y * r + 1.0 / 6.0;
	y = y * r + 0.5;
	y = y * r + 1.0;
	y = y * r + 1.0;
	*v = y * (lanes)scale;
}

static void weigh(struct sampler *s, size_t n, double max, double temperature)
{
	for (size_t i = n; i % 4; i++) /* whole lanes */
		s->key[i] = s->key[n - 1];
	for (size_t i = 0; i < n; i += 4) {
		lanes x;
		keys k;

		memcpy(&k, s->key + i, sizeof(k));
		k ^= ~(k >> 31) | INT32_MIN; /* key_of undone */
		x = (__builtin_convertvector((logits4)k, lanes) - max) / temperature;
		exp_lanes(&x);
		memcpy(s->p + i, &x, sizeof(x));
	}
}

/* The sum of all weights, by blocks. */
static double total(struct sampler *s, size_t n)
{
	double all = 0.0;

	for (size_t i = n; i % BLOCK; i++)
		s->p[i] = 0.0;
	for (size_t b = 0; b * BLOCK < n; b++) {
		lanes sum = { 0.0 }, x;

		for (size_t i = 0; i < BLOCK; i += 4) {
			memcpy(&x, s->p + b * BLOCK + i, sizeof(x));
			sum += x;
		}
		s->sum[b] = sum[0] + sum[1] + sum[2] + sum[3];
		all += s->sum[b];
	}
	return all;
}

/* ---- cuts ---- */

/* The largest key at which the weights (p, or 1 each), taken from the largest key downwards, reach `want`; *above: what
 * lies over it.  Radix selection: nothing is sorted. */
static uint32_t boundary(struct sampler *s, size_t n, const double *p, double want, double *above)
{
	static const struct { uint32_t shift, mask; } level[] = { { 21, 0x7ff }, { 10, 0x7ff }, { 0, 0x3ff } };
	uint32_t prefix = 0, known = 0;

	*above = 0.0;
	for (size_t l = 0; l < ARRAY_LEN(level); l++) {
		uint32_t shift = level[l].shift, mask = level[l].mask, at = 0;
		double sum = *above;

		memset(s->bucket, 0, BUCKETS * sizeof(*s->bucket));
		for (size_t i = 0; i < n; i++)
			if ((s->key[i] & known) == prefix)
				s->bucket[s->key[i] >> shift & mask] += p ? p[i] : 1.0;
		for (uint32_t b = mask + 1; b-- > 0;) {
			if (!(s->bucket[b] > 0.0))
				continue;
			at = b;
			*above = sum;
			sum += s->bucket[b];
			if (sum >= want)
				break;
		}
		prefix |= at << shift;
		known |= mask << shift;
	}
	return prefix;
}

/* Keeps the likeliest candidates that together reach `want`, of equals the lower ids. */
static size_t keep(struct sampler *s, size_t n, bool weighed, double want)
{
	double above;
	uint32_t least = boundary(s, n, weighed ? s->p : NULL, want, &above);
	size_t kept = 0;

	for (size_t i = 0; i < n; i++) {
		if (s->key[i] < least || (s->key[i] == least && !(above < want)))
			continue;
		if (s->key[i] == least)
			above += weighed ? s->p[i] : 1.0;
		s->key[kept] = s->key[i];
		s->id[kept] = s->id[i];
		s->p[kept++] = s->p[i];
	}
	return kept;
}

static uint32_t draw(const struct sampler *s, size_t n, double at)
{
	double sum = 0.0;
	size_t b = 0, i;

	while ((b + 1) * BLOCK < n && sum + s->sum[b] <= at)
		sum += s->sum[b++];
	/* Where rounding leaves the sum short of the draw, the last candidate is the answer. */
	for (i = b * BLOCK; i + 1 < n; i++) {
		sum += s->p[i];
		if (sum > at)
			break;
	}
	return s->id[i];
}

static uint32_t sample(struct sampler *s, const struct sample_params *p, const float *x, uint32_t argmax,
	uint64_t position)
{
	double max = (double)x[argmax], nats = FAR, sum;
	size_t n;

	if (p->min_p > 0.0 && -log(p->min_p) < nats)
		nats = -log(p->min_p);
	n = gather(s, x, max - nats * p->temperature);
	if (!n)
		return argmax;
	if (p->top_k && p->top_k < n)
		n = keep(s, n, false, (double)p->top_k);
	weigh(s, n, max, p->temperature);
	sum = total(s, n);
	if (p->top_p < 1.0) {
		n = keep(s, n, true, p->top_p * sum);
		sum = total(s, n);
	}
	return s->id[n - 1] == s->id[0] ? s->id[0] : draw(s, n, random_unit(p->seed, position) * sum);
}

/* ---- log-probabilities ---- */

static double logprob(float logit, double lse)
{
	double l = (double)logit - lse;

	return l > 0.0 ? 0.0 : l; /* rounding of lse */
}

/* The likeliest tokens, falling, of equals the lower id first. */
static void find_tops(const float *x, size_t vocab, size_t want, double lse, struct sampled *out)
{
	float least = -INFINITY;
	size_t n = 0;

	for (size_t i = 0; i < vocab; i++) {
		size_t at;

		if (n == want ? !(x[i] > least) : isnan(x[i]))
			continue;
		n += n < want;
		for (at = n - 1; at && x[out->top[at - 1].id] < x[i]; at--)
			out->top[at] = out->top[at - 1];
		out->top[at].id = (uint32_t)i;
		least = x[out->top[n - 1].id];
	}
	for (size_t i = 0; i < n; i++)
		out->top[i].logprob = logprob(x[out->top[i].id], lse);
	out->tops = n;
}

bool sample_token(struct sampler *s, const struct sample_params *p, const struct sample_history *h,
	const float *logits, uint32_t argmax, double lse, uint64_t position, struct sampled *out)
{
	const float *x;

	out->tops = 0;
	if (!isfinite(logprob(logits[argmax], lse)))
		return false;
	x = adjust(s, p, h, logits, &argmax);
	out->id = p->temperature > 0.0 ? sample(s, p, x, argmax, position) : argmax;
	out->logprob = logprob(logits[out->id], lse);
	if (p->top_logprobs)
		find_tops(logits, s->vocab, p->top_logprobs, lse, out);
	return true;
}

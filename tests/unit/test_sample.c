/* Sampling: a function of (logits, parameters, seed, position), with the distribution that it promises. */
#include <math.h>

#include "base/mem.h"
#include "base/random.h"
#include "engine/sample.h"
#include "normal.h"
#include "tap.h"

enum { VOCAB = 1000, DRAWS = 20000 };

static float logits[VOCAB];
static uint32_t argmax;
static double lse;

static void make_logits(void)
{
	double sum = 0.0;

	for (uint32_t i = 0; i < VOCAB; i++) {
		logits[i] = (float)(2.0 * normal_at(7, i));
		if (logits[i] > logits[argmax])
			argmax = i;
		sum += exp((double)logits[i]);
	}
	lse = log(sum);
}

static uint32_t draw(struct sampler *s, double t, double top_p, size_t top_k, uint64_t seed, uint64_t position)
{
	struct sample_params p = { .temperature = t, .top_p = top_p, .top_k = top_k, .seed = seed };
	double logprob;
	uint32_t id = sample_token(s, &p, logits, argmax, lse, position, &logprob);

	if (fabs(logprob - ((double)logits[id] - lse)) > 1e-9)
		tap_bail("logprob is not that of the untempered distribution");
	return id;
}

/* Largest difference between frequencies of DRAWS draws and the distribution asked for, in standard deviations. */
static double worst_deviation(struct sampler *s, double t, size_t top_k, double top_p)
{
	static double p[VOCAB];
	static size_t count[VOCAB];
	double total = 0.0, mass = 0.0, worst = 0.0;

	memset(count, 0, sizeof(count));
	for (size_t i = 0; i < VOCAB; i++) {
		size_t rank = 0;

		for (size_t j = 0; j < VOCAB; j++)
			rank += logits[j] > logits[i];
		p[i] = top_k && rank >= top_k ? 0.0 : exp((double)logits[i] / t);
		total += p[i];
	}
	/* top-p: keep by falling probability until the mass is reached */
	for (size_t n = 0; top_p < 1.0 && n < VOCAB; n++) {
		size_t best = 0;

		for (size_t i = 1; i < VOCAB; i++)
			best = p[i] > p[best] ? i : best;
		if (mass >= top_p * total || p[best] <= 0.0)
			break;
		mass += p[best];
		p[best] = -p[best]; /* kept */
	}
	for (size_t i = 0; top_p < 1.0 && i < VOCAB; i++)
		p[i] = p[i] < 0.0 ? -p[i] : 0.0;
	if (top_p < 1.0)
		total = mass;
	for (uint64_t i = 0; i < DRAWS; i++)
		count[draw(s, t, top_p, top_k, 42, i)]++;
	for (size_t i = 0; i < VOCAB; i++) {
		double want = DRAWS * p[i] / total, d = fabs((double)count[i] - want) / sqrt(want + 1.0);

		worst = d > worst ? d : worst;
		if (p[i] == 0.0 && count[i])
			return INFINITY;
	}
	return worst;
}

int main(void)
{
	struct sampler *s;
	struct ds_err err;
	size_t same = 0, differ = 0;

	if (sampler_new(&s, VOCAB, &err))
		tap_bail("%s", err.text);
	make_logits();
	tap_ok(draw(s, 0.0, 1.0, 0, 1, 5) == argmax, "temperature 0 is greedy");
	tap_ok(draw(s, 1.0, 1.0, 1, 1, 5) == argmax, "top-k 1 is greedy");
	tap_ok(draw(s, 1.0, 1e-9, 0, 1, 5) == argmax, "a tiny top-p is greedy");
	for (uint64_t i = 0; i < 200; i++) {
		same += draw(s, 1.0, 0.9, 40, 3, i) == draw(s, 1.0, 0.9, 40, 3, i);
		differ += draw(s, 1.0, 1.0, 0, 3, i) != draw(s, 1.0, 1.0, 0, 4, i);
	}
	tap_ok(same == 200, "the same seed and position give the same token");
	tap_ok(differ > 150, "another seed gives others (%zu of 200)", differ);
	tap_ok(worst_deviation(s, 1.0, 0, 1.0) < 5.0, "temperature 1: frequencies are the distribution's");
	tap_ok(worst_deviation(s, 0.6, 0, 1.0) < 5.0, "temperature 0.6");
	tap_ok(worst_deviation(s, 0.8, 20, 1.0) < 5.0, "top-k 20");
	tap_ok(worst_deviation(s, 1.0, 0, 0.7) < 5.0, "top-p 0.7");
	tap_ok(worst_deviation(s, 1.3, 50, 0.8) < 5.0, "top-k 50 with top-p 0.8");
	logits[17] = NAN;
	tap_ok(draw(s, 1.0, 1.0, 0, 9, 1) != 17, "a NaN is never chosen");
	sampler_free(s);
	return tap_done();
}

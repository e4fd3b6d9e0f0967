#include "engine/sample.h"

#include <math.h>
#include <stdlib.h>

#include "base/mem.h"
#include "base/random.h"

struct candidate {
	float logit;
	uint32_t id;
	double p;            /* not normalised: exp((logit - max) / temperature) */
};

struct sampler {
	size_t vocab;
	struct candidate *c; /* [vocab] */
};

int sampler_new(struct sampler **out, size_t vocab, struct ds_err *err)
{
	struct sampler *s = mem_calloc(1, sizeof(*s));

	if (s)
		s->c = mem_array(vocab, sizeof(*s->c));
	if (!s || !s->c) {
		free(s);
		return err_nomem(err, vocab * sizeof(struct candidate), "sampling");
	}
	s->vocab = vocab;
	*out = s;
	return 0;
}

void sampler_free(struct sampler *s)
{
	if (!s)
		return;
	free(s->c);
	free(s);
}

static int by_falling_logit(const void *a, const void *b)
{
	const struct candidate *x = a, *y = b;

	if (x->logit != y->logit)
		return x->logit > y->logit ? -1 : 1;
	return x->id < y->id ? -1 : x->id > y->id;
}

/* All tokens with their weights; *total is summed in id order.  A NaN logit never becomes a candidate. */
static size_t weigh(struct sampler *s, const float *logits, float max, double temperature, double *total)
{
	size_t n = 0;

	*total = 0.0;
	for (size_t i = 0; i < s->vocab; i++) {
		double p = exp(((double)logits[i] - (double)max) / temperature);

		if (!(p > 0.0))
			continue;
		s->c[n++] = (struct candidate){ logits[i], (uint32_t)i, p };
		*total += p;
	}
	return n;
}

/* Drops what top-p cannot reach before anything is sorted: tokens whose share is below (1 - top_p) / vocab weigh at
 * most 1 - top_p together, so the nucleus is complete without them. */
static size_t drop_tail(struct sampler *s, size_t n, double least)
{
	size_t kept = 0;

	for (size_t i = 0; i < n; i++)
		if (s->c[i].p >= least)
			s->c[kept++] = s->c[i];
	return kept;
}

/* Candidates in order, cut to top-k and then to the fewest that reach top_p of what top-k left. */
static size_t cut(struct sampler *s, const struct sample_params *p, size_t n, double *total)
{
	double sum = 0.0;
	size_t kept = 0;

	if (!p->top_k && p->top_p < 1.0)
		n = drop_tail(s, n, *total * (1.0 - p->top_p) / (double)s->vocab);
	qsort(s->c, n, sizeof(*s->c), by_falling_logit);
	if (p->top_k && p->top_k < n)
		n = p->top_k;
	if (p->top_k) {
		*total = 0.0;
		for (size_t i = 0; i < n; i++)
			*total += s->c[i].p;
	}
	if (p->top_p >= 1.0)
		return n;
	while (kept < n && sum < p->top_p * *total)
		sum += s->c[kept++].p;
	*total = sum;
	return kept;
}

uint32_t sample_token(struct sampler *s, const struct sample_params *p, const float *logits, uint32_t argmax,
	double lse, uint64_t position, double *logprob)
{
	uint32_t id = argmax;
	double total, at, sum = 0.0;
	size_t n;

	if (p->temperature > 0.0) {
		n = weigh(s, logits, logits[argmax], p->temperature, &total);
		if (p->top_k || p->top_p < 1.0)
			n = cut(s, p, n, &total);
		at = random_unit(p->seed, position) * total;
		/* Where rounding leaves the sum short of the draw, the last candidate is the answer. */
		for (size_t i = 0; i < n; i++) {
			id = s->c[i].id;
			sum += s->c[i].p;
			if (sum > at)
				break;
		}
	}
	*logprob = (double)logits[id] - lse;
	if (*logprob > 0.0)
		*logprob = 0.0; /* rounding of lse */
	return id;
}

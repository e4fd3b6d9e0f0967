/*
 * Choosing a token from logits.  The choice is a function of (logits, parameters, seed, position) alone (law 2).
 *
 * Order of operations, as in the engines people compare with: temperature, then top-k, then top-p; the draw is the
 * inverse of the cumulative distribution at random_unit(seed, position), over candidates by falling logit (ties by id)
 * where top-k or top-p ordered them, by id where neither did.
 */
#ifndef DS_ENGINE_SAMPLE_H
#define DS_ENGINE_SAMPLE_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct sample_params {
	double temperature;  /* 0: greedy */
	double top_p;        /* (0, 1] */
	size_t top_k;        /* 0: all */
	uint64_t seed;
};

struct sampler;          /* working memory for one vocabulary size */

int sampler_new(struct sampler **s, size_t vocab, struct ds_err *err);
void sampler_free(struct sampler *s);

/* logits [vocab], argmax and lse as the engine gives them; position: of the token to be chosen.  *logprob: natural, of
 * the untempered distribution. */
uint32_t sample_token(struct sampler *s, const struct sample_params *p, const float *logits, uint32_t argmax,
	double lse, uint64_t position, double *logprob);

#endif

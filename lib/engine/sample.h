/*
 * Choosing a token from logits.  The choice is a function of (logits, parameters, history, seed, position) alone
 * (law 2): no state is kept between calls, every sum runs in an order that only these fix.
 *
 * Order of operations, as in vLLM's sampler (v1/sample/sampler.py) and Hugging Face's logits processors:
 *   1. logit bias is added                                                            (OpenAI's logit_bias)
 *   2. repetition penalty, for tokens of the prompt and of the answer so far: a positive logit is divided by it, any
 *      other multiplied                                                               (CTRL, arXiv 1909.05858, 4.1)
 *   3. frequency penalty times the token's count in the answer, then the presence penalty once, are subtracted, for
 *      tokens of the answer only                                                      (OpenAI's definition)
 *   4. temperature 0 takes the largest logit, of equals the lowest id; else logits are divided by the temperature
 *   5. min-p: tokens at least min_p times as likely as the likeliest stay             (arXiv 2407.01082)
 *   6. top-k of what is left; of equals the lower ids
 *   7. top-p of what is left: the fewest likeliest tokens that together reach top_p of it, one at least
 *                                                                                     (arXiv 1904.09751, 3.1)
 * The draw inverts the cumulative distribution of what is left, in the order of ids, at random_unit(seed, position).
 * Each of 1 to 3 rounds to float32.  A NaN is never chosen, nor is what is e^64 times less likely than the likeliest:
 * that lies far beneath the 2^-53 steps of the draw.
 *
 * Log-probabilities are of the model's own distribution, before all of this, as OpenAI and vLLM give them.
 */
#ifndef DS_ENGINE_SAMPLE_H
#define DS_ENGINE_SAMPLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "frame/messages.h"

struct sample_params {
	double temperature;  /* 0: greedy */
	double top_p;        /* (0, 1] */
	double min_p;        /* [0, 1]; 0: off */
	size_t top_k;        /* 0: all */
	double repetition;   /* above 0; 1: off (0 is taken for 1, too) */
	double presence, frequency; /* 0: off */
	const struct logit_bias *bias; /* [bias_count], each id once; ids beyond the vocabulary are passed over */
	size_t bias_count;
	uint64_t seed;
	size_t top_logprobs; /* at most 20 */
};

/* ---- what penalties look at: the prompt's tokens as a set, those of the answer with their counts ---- */

struct sample_history;
struct sample_seen { uint32_t id, count; bool prompt; }; /* count: in the answer */

int sample_history_new(struct sample_history **h, const uint32_t *prompt, size_t n, struct ds_err *err);
/* One more of it, for another choice. */
int sample_history_copy(struct sample_history **h, const struct sample_history *from, struct ds_err *err);
/* A token of the answer; DS_OS without memory. */
int sample_history_add(struct sample_history *h, uint32_t id, struct ds_err *err);
void sample_history_free(struct sample_history *h);
/* Each token once; the number of them. */
size_t sample_history_seen(const struct sample_history *h, const struct sample_seen **v);
/* False where a sampler would not look at one. */
bool sample_needs_history(const struct sample_params *p);

/* ---- sampling ---- */

struct sampler;          /* working memory for one vocabulary size; one thread at a time */

int sampler_new(struct sampler **s, size_t vocab, struct ds_err *err);
void sampler_free(struct sampler *s);

/* logits [vocab], argmax and lse as the engine gives them; h may be NULL; position: of the token to be chosen.  False,
 * and out is not to be used, where argmax's log-probability is not finite.  Without cuts, penalties and temperature it
 * reads no more than logits[argmax]. */
bool sample_token(struct sampler *s, const struct sample_params *p, const struct sample_history *h,
	const float *logits, uint32_t argmax, double lse, uint64_t position, struct sampled *out);

/* The seed of a request's choice number `choice`; choice 0 draws as a request with one choice does. */
uint64_t sample_choice_seed(uint64_t seed, size_t choice);

#endif

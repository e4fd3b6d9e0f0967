/* What follows from a configuration: rope tables, scales, parameter counts. */
#include "model/config.h"

#include <math.h>

bool config_is_moe(const struct config *c, size_t layer)
{
	return c->experts && layer >= c->dense_layers && layer % c->moe_every == 0;
}

/* YaRN's attention temperature as DeepSeek writes it. */
static double yarn_m(const struct config *c, double x)
{
	return c->rope_type == ROPE_YARN && c->yarn_factor > 1 ? 0.1 * x * log(c->yarn_factor) + 1.0 : 1.0;
}

double config_softmax_scale(const struct config *c)
{
	double m = yarn_m(c, c->mscale_all_dim);

	return m * m / sqrt((double)(c->nope + c->rope));
}

double config_rope_mscale(const struct config *c)
{
	return yarn_m(c, c->mscale) / yarn_m(c, c->mscale_all_dim);
}

/* The (fractional) pair whose wave makes `turns` turns over the original context. */
static double turns_to_pair(const struct config *c, double turns)
{
	return (double)c->rope * log((double)c->yarn_original / (turns * 2 * M_PI)) / (2 * log(c->rope_theta));
}

void config_inv_freq(const struct config *c, double *inv_freq)
{
	double low = 0, high = 0;

	if (c->rope_type == ROPE_YARN) {
		low = fmax(floor(turns_to_pair(c, c->beta_fast)), 0);
		high = fmin(ceil(turns_to_pair(c, c->beta_slow)), (double)c->rope - 1);
		if (low == high)
			high += 0.001; /* a step instead of a ramp */
	}
	for (size_t i = 0; i < c->rope / 2; i++) {
		double f = pow(c->rope_theta, -2.0 * (double)i / (double)c->rope);

		if (c->rope_type == ROPE_YARN) {
			double ramp = fmin(fmax(((double)i - low) / (high - low), 0), 1);

			f = f / c->yarn_factor * ramp + f * (1 - ramp);
		}
		inv_freq[i] = f;
	}
}

void config_rope_row(const struct config *c, const double *inv_freq, size_t position, float *cs)
{
	double m = config_rope_mscale(c);

	for (size_t i = 0; i < c->rope / 2; i++) {
		double angle = (double)position * inv_freq[i];

		cs[2 * i] = (float)(cos(angle) * m);
		cs[2 * i + 1] = (float)(sin(angle) * m);
	}
}

static uint64_t attention_params(const struct config *c)
{
	uint64_t q = (uint64_t)c->heads * (c->nope + c->rope), n;

	n = c->q_lora ? (uint64_t)c->q_lora * c->hidden + c->q_lora + q * c->q_lora : q * c->hidden;
	n += (uint64_t)(c->kv_lora + c->rope) * c->hidden + c->kv_lora;
	n += (uint64_t)c->heads * (c->nope + c->v) * c->kv_lora;
	n += (uint64_t)c->hidden * c->heads * c->v;
	return n + 2 * (uint64_t)c->hidden; /* the layer's two norms */
}

/* Parameters of layer's FFN that `experts` routed experts take part in. */
static uint64_t ffn_params(const struct config *c, size_t layer, size_t experts)
{
	uint64_t router = (uint64_t)c->experts * c->hidden + (c->topk == TOPK_NOAUX_TC ? c->experts : 0);

	if (!config_is_moe(c, layer))
		return 3 * (uint64_t)c->hidden * c->inter;
	return router + 3 * (uint64_t)c->hidden * c->moe_inter * (experts + c->shared);
}

struct param_count config_params(const struct config *c)
{
	/* config_parse bounds every size so that the sums fit: 2^10 layers of 3 * 2^52 at most */
	uint64_t embed = (uint64_t)c->vocab * c->hidden, head = c->tie_embeddings ? 0 : embed;
	struct param_count p = { .total = embed + head + c->hidden, .active = embed + c->hidden };

	for (size_t i = 0; i < c->layers; i++) {
		p.total += attention_params(c) + ffn_params(c, i, c->experts);
		p.active += attention_params(c) + ffn_params(c, i, c->top_k);
	}
	for (size_t i = c->layers; i < c->layers + c->mtp_layers; i++)
		p.mtp += attention_params(c) + ffn_params(c, i, c->experts) + 2 * (uint64_t)c->hidden * c->hidden +
			3 * (uint64_t)c->hidden;
	return p;
}

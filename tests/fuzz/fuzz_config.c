/* config.json: what is accepted must be fit to compute with. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const struct config *c)
{
	double *inv;
	float *row;
	struct param_count p = config_params(c);

	if (!c->vocab || !c->hidden || !c->layers || !c->heads || !c->kv_lora || !c->nope || !c->rope || c->rope % 2 ||
		!c->v || c->eos_count > CONFIG_MAX_EOS || p.active > p.total || p.total > (uint64_t)1 << 50)
		abort();
	if (c->experts &&
		(!c->top_k || !c->groups || c->experts % c->groups || !c->topk_groups || c->topk_groups > c->groups ||
			c->top_k > c->experts / c->groups * c->topk_groups || !c->moe_inter || !c->moe_every ||
			c->dense_layers > c->layers))
		abort();
	if (!isfinite(config_softmax_scale(c)) || !isfinite(config_rope_mscale(c)) || config_softmax_scale(c) <= 0)
		abort();
	inv = malloc(c->rope / 2 * sizeof(*inv));
	row = malloc(c->rope * sizeof(*row));
	if (inv && row) {
		config_inv_freq(c, inv);
		config_rope_row(c, inv, c->max_positions - 1, row);
		for (size_t i = 0; i < c->rope; i++)
			if (!isfinite(row[i]) || !isfinite(inv[i / 2]) || inv[i / 2] < 0)
				abort();
	}
	free(inv);
	free(row);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct config c;
	struct ds_err err = { 0 };
	int rc = config_parse((const char *)data, size, "fuzz", &c, &err);

	if (rc ? rc != DS_DATA || !err.text[0] || strchr(err.text, '\n') : 0)
		abort();
	if (!rc)
		check(&c);
	return 0;
}

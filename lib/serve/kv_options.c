#include "serve/kv_options.h"

#include <string.h>

#include "base/utf8.h"
#include "serve/ranked.h"
#include "serve/work.h"

#define WRITE_BYTES_LEAST ((size_t)64 << 20) /* for blocks on their way to the store; else an eighth of the KV memory */

static int parse_form(const char *s, enum block_form *f, struct ds_err *err)
{
	if (strcmp(s, "bf16") == 0)
		*f = BLOCK_EXACT; /* as in memory, which is float32 with --arith float32 */
	else if (strcmp(s, "fp8") == 0)
		*f = BLOCK_FP8;
	else
		return err_set(err, DS_USAGE, "--kv-dtype: '%s' is neither 'bf16' nor 'fp8'", s);
	return 0;
}

struct hashing { const struct model *m; char *hex; };

static int hash_weights(void *arg, struct ds_err *err)
{
	const struct hashing *h = arg;

	return model_fingerprint_full(h->m, h->hex, err);
}

/* The fingerprint that peers compare looks at a sample of each tensor: enough for weights that one operator serves at a
 * time, not for a store that outlives them and that models which differ in a few rows share. */
static int name_model(struct work *w, const struct kv_options *o, struct block_layout *l, struct ds_err *err)
{
	struct hashing h = { w->model, l->model };

	if (!o->model)
		return ranked_aside(w, hash_weights, &h, err);
	if (!*o->model || strlen(o->model) >= sizeof(l->model) || !utf8_valid(o->model, strlen(o->model), NULL))
		return err_set(err, DS_USAGE, "--kv-model: '%s' is no name of 1 to %zu bytes", o->model,
			sizeof(l->model) - 1);
	snprintf(l->model, sizeof(l->model), "%s", o->model);
	return 0;
}

static void set_layout(const struct work *w, const struct kv_options *o, struct block_layout *l)
{
	const struct config *c = &w->model->config;
	struct hello h;

	work_hello(w, &h, "", "");
	snprintf(l->arith, sizeof(l->arith), "%s", h.quant);
	snprintf(l->kernels, sizeof(l->kernels), "%s", engine_kernels(w->engine));
	l->type = w->pool->type;
	l->layers = w->pool->layers;
	l->mtp = w->mtp;
	l->latent = c->kv_lora;
	l->rope = w->pool->dim - c->kv_lora;
	l->tokens = (uint64_t)o->block;
}

int kv_options_check(const struct kv_options *o, const struct opt_program *p, struct ds_err *err)
{
	static const char *const of_a_store[] = { "kv-block", "kv-dtype", "kv-timeout", "kv-model", "kv-password-file",
		"no-generated", "store-generated" };

	for (size_t i = 0; i < sizeof(of_a_store) / sizeof(*of_a_store) && !o->addr; i++)
		if (opt_given(p, of_a_store[i]))
			return err_set(err, DS_USAGE, "--%s says nothing without --kv ADDR", of_a_store[i]);
	if (o->password && strncmp(o->addr, "redis", 5) != 0)
		return err_set(err, DS_USAGE, "--kv-password-file says nothing without --kv redis://HOST:PORT");
	return 0;
}

int kv_options_open(struct work *w, const struct kv_options *o, uint64_t kv_memory, struct ds_err *err)
{
	struct kv_client_options c = { .addr = o->addr, .password = o->password,
		.timeout_ns = o->timeout_ns, .pool = w->pool,
		.write_bytes = (size_t)kv_memory / 8 };
	int rc = parse_form(o->form, &c.layout.form, err);

	if (rc || !o->addr)
		return rc;
	if (o->block % KV_BLOCK)
		return err_set(err, DS_USAGE, "--kv-block: %lld is no multiple of %d", (long long)o->block, KV_BLOCK);
	if (!o->timeout_ns)
		return err_set(err, DS_USAGE, "--kv-timeout: 0 would be no store; leave --kv out");
	c.write_bytes = c.write_bytes < WRITE_BYTES_LEAST ? WRITE_BYTES_LEAST : c.write_bytes;
	rc = name_model(w, o, &c.layout, err);
	if (rc)
		return rc;
	set_layout(w, o, &c.layout);
	c.pure = o->pure;
	w->store_timeout_ns = o->timeout_ns;
	w->generated = o->generated;
	rc = kv_client_open(&w->store, &c, err);
	if (!rc && w->ranked)
		rc = kv_client_watch(w->store, ranked_bell(w), err);
	return rc;
}

/* Keys of KV blocks, and what their items say. */
#define OPENSSL_API_COMPAT 0x10100000L /* SHA256 as one call, which needs no memory and cannot fail */
#include "store/block.h"

#include <endian.h>
#include <openssl/sha.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"

/* What is hashed: numbers of 64 bits and token ids of 32, low byte first, and texts behind their lengths, the same on
 * every machine. */
struct hashed { size_t n; uint8_t p[64 + BLOCK_TOKENS_MAX * sizeof(uint32_t)]; };

static void add(struct hashed *h, const void *p, size_t n)
{
	n = n < sizeof(h->p) - h->n ? n : sizeof(h->p) - h->n;
	memcpy(h->p + h->n, p, n);
	h->n += n;
}

static void add_uint(struct hashed *h, uint64_t v)
{
	v = htole64(v);
	add(h, &v, sizeof(v));
}

static void add_text(struct hashed *h, const char *text)
{
	add_uint(h, strlen(text));
	add(h, text, strlen(text));
}

static struct store_key finish(const struct hashed *h)
{
	uint8_t digest[SHA256_DIGEST_LENGTH];
	struct store_key k;

	SHA256(h->p, h->n, digest);
	memcpy(k.b, digest, sizeof(k.b));
	return k;
}

static const char *form_name(enum block_form f)
{
	return f == BLOCK_FP8 ? "fp8" : "exact";
}

/* How many ids a block's rows depend on. */
static size_t id_count(const struct block_layout *l)
{
	return (size_t)l->tokens + (l->mtp > 0);
}

struct store_key block_root(const struct block_layout *l)
{
	struct hashed h = { 0 };

	add_text(&h, "dsutils KV block");
	add_text(&h, l->model);
	add_text(&h, l->arith);
	add_text(&h, l->kernels);
	add_text(&h, dtype_name(l->type));
	add_uint(&h, l->layers);
	add_uint(&h, l->mtp);
	add_uint(&h, l->latent);
	add_uint(&h, l->rope);
	add_uint(&h, l->tokens);
	add_text(&h, form_name(l->form));
	return finish(&h);
}

struct store_key block_key(const struct block_layout *l, const struct block_id *id)
{
	struct hashed h;

	h.n = 0;
	add(&h, id->parent.b, sizeof(id->parent.b));
	add_uint(&h, id->first);
	add_uint(&h, id->decoded);
	for (size_t i = 0; i < id_count(l); i++) {
		uint32_t t = htole32(id->ids[i]);

		add(&h, &t, sizeof(t));
	}
	return finish(&h);
}

/* ---- sizes ---- */

static bool times(uint64_t a, uint64_t b, size_t *out)
{
	return a <= SIZE_MAX && b <= SIZE_MAX && mem_mul((size_t)a, (size_t)b, out);
}

bool block_sizes(const struct block_layout *l, size_t *memory, size_t *stored)
{
	size_t rows, row, scale, rope, element = dtype_size(l->type);

	if (l->latent > UINT32_MAX || l->rope > UINT32_MAX || l->tokens > BLOCK_TOKENS_MAX ||
	    !times(l->layers, l->tokens, &rows) || !times(l->latent + l->rope, element, &row) ||
	    !mem_mul(rows, row, memory) || *memory > UINT32_MAX)
		return false;
	*stored = *memory;
	if (l->form == BLOCK_FP8) { /* hardly more than in memory: nothing overflows */
		block_parts(l, &scale, &rope);
		*stored = rope + rows * (size_t)l->rope * element;
	}
	return true;
}

void block_parts(const struct block_layout *l, size_t *scale, size_t *rope)
{
	size_t rows = (size_t)(l->layers * l->tokens);

	*scale = round_up(rows * (size_t)l->latent, FRAME_ALIGN);
	*rope = *scale + round_up(rows * block_groups(l) * sizeof(float), FRAME_ALIGN);
}

/* ---- what an item says ---- */

/* Places in block_id that are numbers, and their names. */
static const struct { const char *name; size_t at; bool of_id; } numbers[] = {
	{ "layers", offsetof(struct block_layout, layers), false },
	{ "mtp", offsetof(struct block_layout, mtp), false },
	{ "latent", offsetof(struct block_layout, latent), false },
	{ "rope", offsetof(struct block_layout, rope), false },
	{ "block", offsetof(struct block_layout, tokens), false },
	{ "first", offsetof(struct block_id, first), true },
	{ "decoded", offsetof(struct block_id, decoded), true },
};

static uint64_t number(const struct block_layout *l, const struct block_id *id, size_t i)
{
	uint64_t v;

	memcpy(&v, (numbers[i].of_id ? (const char *)id : (const char *)l) + numbers[i].at, sizeof(v));
	return v;
}

static void put_tensors(struct meta_builder *b, const struct block_layout *l)
{
	uint64_t shape[3] = { l->layers, l->tokens, l->latent + l->rope };
	size_t scale, rope;

	if (l->form == BLOCK_EXACT) {
		meta_put_tensor(b, "kv", l->type, "layer,token,dim", shape, 3, 0, NULL);
		return;
	}
	block_parts(l, &scale, &rope);
	shape[2] = l->latent;
	meta_put_tensor(b, "kv", DT_F8_E4M3, "layer,token,dim", shape, 3, 0, "scale");
	shape[2] = block_groups(l);
	meta_put_tensor(b, "scale", DT_F32, "layer,token,group", shape, 3, scale, NULL);
	shape[2] = l->rope;
	meta_put_tensor(b, "rope", l->type, "layer,token,dim", shape, 3, rope, NULL);
}

void block_meta_put(struct meta_builder *b, const struct block_layout *l, const struct block_id *id)
{
	uint32_t *ids = mem_array(id_count(l), sizeof(*ids));
	char hex[STORE_KEY_HEX];

	meta_put_cstr(b, "model", l->model);
	meta_put_cstr(b, "arith", l->arith);
	meta_put_cstr(b, "kernels", l->kernels);
	meta_put_cstr(b, "type", dtype_name(l->type));
	meta_put_cstr(b, "form", form_name(l->form));
	for (size_t i = 0; i < ARRAY_LEN(numbers); i++)
		meta_put_uint(b, numbers[i].name, number(l, id, i));
	store_key_hex(&id->parent, hex);
	meta_put_cstr(b, "parent", hex);
	for (size_t i = 0; ids && i < id_count(l); i++)
		ids[i] = htole32(id->ids[i]);
	if (ids) /* without, block_check will find it wrong */
		meta_put_bin(b, "ids", ids, id_count(l) * sizeof(*ids));
	free(ids);
	put_tensors(b, l);
}

static int differs(const char *key, const char *there, const char *here, struct ds_err *err)
{
	return err_set(err, DS_NO, "the stored block is another: '%s' is %s there, %s here", key, there, here);
}

static int check_text(const struct store_item *item, const char *key, const char *want, struct ds_err *err)
{
	char is[100];

	if (meta_cstr(item->meta, key, is, sizeof(is)) != META_OK)
		return differs(key, "no text", want, err);
	return strcmp(is, want) == 0 ? 0 : differs(key, is, want, err);
}

static int check_number(const struct store_item *item, const char *key, uint64_t want, struct ds_err *err)
{
	char is[32], mine[32];
	uint64_t v;

	if (meta_uint(item->meta, key, &v) == META_OK && v == want)
		return 0;
	snprintf(is, sizeof(is), meta_uint(item->meta, key, &v) == META_OK ? "%llu" : "no number",
		(unsigned long long)v);
	snprintf(mine, sizeof(mine), "%llu", (unsigned long long)want);
	return differs(key, is, mine, err);
}

static int check_ids(const struct store_item *item, const struct block_layout *l, const struct block_id *id,
	struct ds_err *err)
{
	const uint8_t *p;
	uint32_t v;
	size_t n;

	if (meta_bin(item->meta, "ids", &p, &n) != META_OK || n != id_count(l) * sizeof(v))
		return err_set(err, DS_NO, "the stored block is another: it has not %zu token ids", id_count(l));
	for (size_t i = 0; i < id_count(l); i++) {
		memcpy(&v, p + i * sizeof(v), sizeof(v));
		if (le32toh(v) != id->ids[i])
			return err_set(err, DS_NO, "the stored block is another: its token %zu is %u there, %u here", i,
				le32toh(v), id->ids[i]);
	}
	return 0;
}

int block_check(const struct store_item *item, const struct block_layout *l, const struct block_id *id,
	struct ds_err *err)
{
	char hex[STORE_KEY_HEX];
	size_t memory, stored;
	int rc;

	store_key_hex(&id->parent, hex);
	if (!block_sizes(l, &memory, &stored) || item->size != stored)
		return err_set(err, DS_NO, "the stored block is another: it has %llu bytes",
			(unsigned long long)item->size);
	if ((rc = check_text(item, "model", l->model, err)) || (rc = check_text(item, "arith", l->arith, err)) ||
	    (rc = check_text(item, "kernels", l->kernels, err)) ||
	    (rc = check_text(item, "type", dtype_name(l->type), err)) ||
	    (rc = check_text(item, "form", form_name(l->form), err)) ||
	    (rc = check_text(item, "parent", hex, err)))
		return rc;
	for (size_t i = 0; i < ARRAY_LEN(numbers); i++)
		if ((rc = check_number(item, numbers[i].name, number(l, id, i), err)))
			return rc;
	return check_ids(item, l, id, err);
}

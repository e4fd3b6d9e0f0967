#include "frame/hello.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"

static void put_text(struct meta_builder *b, const char *key, const char *s)
{
	if (*s)
		meta_put_cstr(b, key, s);
}

void hello_put(struct meta_builder *b, const struct hello *h)
{
	meta_put_uint(b, "minor", h->minor);
	meta_put_cstr(b, "program", h->program);
	meta_put_cstr(b, "version", h->version);
	put_text(b, "role", h->role);
	put_text(b, "model", h->model);
	if (h->kv.type != DT_NONE) {
		meta_put_map(b, "kv");
		meta_put_cstr(b, "dtype", dtype_name(h->kv.type));
		meta_put_uint(b, "block", h->kv.block);
		meta_put_uint(b, "layers", h->kv.layers);
		meta_put_uint(b, "dim", h->kv.dim);
		meta_put_end(b);
	}
	put_text(b, "quant", h->quant);
	if (h->vocab)
		meta_put_uint(b, "vocab", h->vocab);
	meta_put_uint(b, "mtp", h->mtp);
	meta_put_uint(b, "rank", h->rank);
	meta_put_uint(b, "world", h->world ? h->world : 1);
	if (h->elsewhere)
		meta_put_bool(b, "elsewhere", true);
	put_text(b, "via", h->via);
}

static int bad(const char *key, struct ds_err *err)
{
	return err_set(err, DS_DATA, "the hello frame's '%s' is not what it should be", key);
}

static int get_kv(struct meta m, struct hello *h, struct ds_err *err)
{
	struct meta kv;
	char name[16];

	switch (meta_map(m, "kv", &kv)) {
	case META_ABSENT:
		return 0;
	case META_TYPE:
		return bad("kv", err);
	case META_OK:
		break;
	}
	if (meta_cstr(kv, "dtype", name, sizeof name) != META_OK || (h->kv.type = dtype_parse(name)) == DT_NONE)
		return bad("kv.dtype", err);
	if (meta_uint(kv, "block", &h->kv.block) != META_OK || meta_uint(kv, "layers", &h->kv.layers) != META_OK ||
		meta_uint(kv, "dim", &h->kv.dim) != META_OK)
		return bad("kv", err);
	return 0;
}

int hello_get(const struct frame *f, struct hello *h, struct ds_err *err)
{
	struct { const char *key; char *dst; size_t cap; } texts[] = {
		{ "program", h->program, sizeof h->program }, { "version", h->version, sizeof h->version },
		{ "role", h->role, sizeof h->role }, { "model", h->model, sizeof h->model },
		{ "quant", h->quant, sizeof h->quant }, { "via", h->via, sizeof h->via },
	};
	struct { const char *key; uint64_t *dst; } numbers[] = {
		{ "minor", &h->minor }, { "vocab", &h->vocab }, { "mtp", &h->mtp },
		{ "rank", &h->rank }, { "world", &h->world },
	};

	memset(h, 0, sizeof *h);
	h->world = 1;
	if (f->type != FRAME_HELLO)
		return err_set(err, DS_DATA, "the stream begins with %s where hello is due",
			frame_type_name(f->type) ? frame_type_name(f->type) : "a frame of unknown type");
	for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
		if (meta_cstr(f->meta, texts[i].key, texts[i].dst, texts[i].cap) == META_TYPE)
			return bad(texts[i].key, err);
	for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
		if (meta_uint(f->meta, numbers[i].key, numbers[i].dst) == META_TYPE)
			return bad(numbers[i].key, err);
	if (meta_bool(f->meta, "elsewhere", &h->elsewhere) == META_TYPE)
		return bad("elsewhere", err);
	if (h->rank >= h->world)
		return bad("rank", err);
	return get_kv(f->meta, h, err);
}

static int differ_text(const char *what, const char *mine, const char *theirs, const char *peer, struct ds_err *err)
{
	if (!*mine || !*theirs || strcmp(mine, theirs) == 0)
		return 0;
	return err_set(err, DS_PROTO, "'%s' has %s '%s', here it is '%s'", peer, what, theirs, mine);
}

static int differ(const char *what, uint64_t mine, uint64_t theirs, const char *peer, struct ds_err *err)
{
	if (!mine || !theirs || mine == theirs)
		return 0;
	return err_set(err, DS_PROTO, "'%s' has %s %llu, here it is %llu", peer, what, (unsigned long long)theirs,
		(unsigned long long)mine);
}

/* Who speaks frames, but takes no requests and gives no answers. */
int hello_check_stage(const struct hello *theirs, const char *peer, struct ds_err *err)
{
	static const char *const roles[] = { "store", "dump", "load" };

	for (size_t i = 0; i < ARRAY_LEN(roles); i++)
		if (strcmp(theirs->role, roles[i]) == 0)
			return err_set(err, DS_PROTO, "'%s' is no stage of a pipeline, but %s (role '%s')%s", peer,
				theirs->program, theirs->role, i ? "" : "; a store is given to --kv");
	return 0;
}

int hello_check(const struct hello *mine, const struct hello *theirs, const char *peer, struct ds_err *err)
{
	int rc = differ_text("model", mine->model, theirs->model, peer, err);

	if (!rc)
		rc = differ("a vocabulary of", mine->vocab, theirs->vocab, peer, err);
	if (!rc)
		rc = differ_text("quantisation", mine->quant, theirs->quant, peer, err);
	if (rc || mine->kv.type == DT_NONE || theirs->kv.type == DT_NONE)
		return rc;
	rc = differ_text("KV of type", dtype_name(mine->kv.type), dtype_name(theirs->kv.type), peer, err);
	if (!rc)
		rc = differ("KV blocks of", mine->kv.block, theirs->kv.block, peer, err);
	if (!rc)
		rc = differ("KV layers", mine->kv.layers, theirs->kv.layers, peer, err);
	if (!rc)
		rc = differ("KV rows of", mine->kv.dim, theirs->kv.dim, peer, err);
	return rc;
}

void hello_via(struct hello *h, const char *program, const char *version)
{
	char entry[80];
	size_t n, used;

	snprintf(entry, sizeof entry, "%s/%s", program, version);
	n = strlen(entry);
	used = strlen(h->via);
	while (used && used + 1 + n >= sizeof h->via) { /* the oldest gives way */
		const char *comma = strchr(h->via, ',');

		if (comma)
			memmove(h->via, comma + 1, strlen(comma + 1) + 1);
		else
			h->via[0] = 0;
		used = strlen(h->via);
	}
	snprintf(h->via + used, sizeof h->via - used, "%s%s", used ? "," : "", entry);
}

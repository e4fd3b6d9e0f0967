/* What a client and a KV store say to each other. */
#include "frame/messages_store.h"

#include <string.h>

#include "base/mem.h"
#include "frame/messages_impl.h"

static const char *const op_names[STORE_OP_COUNT] = {
	[STORE_OP_HAS] = "has", [STORE_OP_GET] = "get", [STORE_OP_PUT] = "put", [STORE_OP_DEL] = "del",
	[STORE_OP_PIN] = "pin", [STORE_OP_UNPIN] = "unpin", [STORE_OP_STAT] = "stat", [STORE_OP_DOUBT] = "doubt",
	[STORE_OP_MEMORY] = "memory",
	[STORE_OP_OK] = "ok", [STORE_OP_SEGMENT] = "segment", [STORE_OP_RANGES] = "ranges",
};

const char *store_op_name(enum store_op op)
{
	return op_names[op] ? op_names[op] : "?";
}

int store_op_get(const struct frame *f, enum store_op *op, struct ds_err *err)
{
	const char *s;
	size_t n;

	*op = STORE_OP_NONE;
	if (meta_str(f->meta, "op", &s, &n) != META_OK)
		return message_bad(f, "op", err, "is missing, or no text");
	for (unsigned i = 1; i < STORE_OP_COUNT; i++)
		if (strlen(op_names[i]) == n && memcmp(op_names[i], s, n) == 0)
			*op = i;
	return 0;
}

static void put_op(struct meta_builder *b, enum store_op op)
{
	meta_put_cstr(b, "op", op_names[op]);
}

/* The payload's tensor of that name and type, [*n, cols] or, cols 0, [*n]. */
static int get_rows(const struct frame *f, const char *name, enum dtype type, uint64_t cols, size_t max,
	const void **p, size_t *n, struct ds_err *err)
{
	struct frame_tensor t;
	int rc = frame_tensor_get(f, name, &t, err);

	if (rc)
		return rc;
	if (t.type != type || t.ndim != (cols ? 2 : 1) || (cols && t.shape[1] != cols))
		return message_bad(f, name, err, "is not %s of the shape that it should have", dtype_name(type));
	if (t.shape[0] < 1 || t.shape[0] > max)
		return message_bad(f, name, err, "has %llu rows, not 1 to %zu", (unsigned long long)t.shape[0], max);
	*p = f->data + t.offset;
	*n = (size_t)t.shape[0];
	return 0;
}

/* ---- requests ---- */

void store_request_put(struct meta_builder *b, const struct store_request *r)
{
	const uint64_t shape[2] = { r->n, STORE_MESSAGE_KEY };

	put_op(b, r->op);
	if (r->each)
		meta_put_bool(b, "each", true);
	if (r->fds)
		meta_put_bool(b, "fds", true);
	if (r->n)
		meta_put_tensor(b, "keys", DT_U8, "key,byte", shape, 2, 0, NULL);
}

int store_request_get(const struct frame *f, struct store_request *r, struct ds_err *err)
{
	const void *keys = NULL;
	int rc;

	memset(r, 0, sizeof(*r));
	rc = store_op_get(f, &r->op, err);
	if (!rc)
		rc = message_bool(f, f->meta, "each", &r->each, err);
	if (!rc)
		rc = message_bool(f, f->meta, "fds", &r->fds, err);
	if (rc || r->op == STORE_OP_STAT || r->op == STORE_OP_MEMORY)
		return rc;
	rc = get_rows(f, "keys", DT_U8, STORE_MESSAGE_KEY, r->op == STORE_OP_DEL ? 1 : STORE_MESSAGE_KEYS, &keys, &r->n,
		err);
	r->keys = keys;
	return rc;
}

const char *const store_put_request_keys[] = { "sync", "replace", "shared", "element", "ttl_ns", NULL };

void store_put_request_put(struct meta_builder *b, const struct store_put_request *r)
{
	if (r->sync)
		meta_put_bool(b, "sync", true);
	if (r->replace)
		meta_put_bool(b, "replace", true);
	if (r->shared)
		meta_put_bool(b, "shared", true);
	if (r->element)
		meta_put_uint(b, "element", r->element);
	if (r->ttl_ns)
		meta_put_uint(b, "ttl_ns", r->ttl_ns);
}

int store_put_request_get(const struct frame *f, struct store_put_request *r, struct ds_err *err)
{
	int rc;

	memset(r, 0, sizeof(*r));
	rc = message_bool(f, f->meta, "sync", &r->sync, err);
	if (!rc)
		rc = message_bool(f, f->meta, "replace", &r->replace, err);
	if (!rc)
		rc = message_bool(f, f->meta, "shared", &r->shared, err);
	if (!rc)
		rc = message_uint(f, f->meta, "element", false, 0, 16, &r->element, err);
	if (!rc)
		rc = message_uint(f, f->meta, "ttl_ns", false, 0, INT64_MAX, &r->ttl_ns, err);
	return rc;
}

/* ---- answers ---- */

void store_answer_has(struct meta_builder *b, uint64_t prefix, const uint8_t *here, size_t n)
{
	const uint64_t shape[1] = { n };

	put_op(b, STORE_OP_OK);
	meta_put_uint(b, "prefix", prefix);
	if (here && n)
		meta_put_tensor(b, "here", DT_U8, "key", shape, 1, 0, NULL);
}

static int answer_has(const struct frame *f, size_t n, bool each, struct store_answer *a, struct ds_err *err)
{
	const void *here;
	int rc = message_uint(f, f->meta, "prefix", true, 0, n, &a->prefix, err);

	if (rc || !each)
		return rc;
	rc = get_rows(f, "here", DT_U8, 0, STORE_MESSAGE_KEYS, &here, &a->n, err);
	if (!rc && a->n != n)
		return message_bad(f, "here", err, "is about %zu keys, not %zu", a->n, n);
	a->here = here;
	return rc;
}

static int answer_was(const struct frame *f, struct store_answer *a, struct ds_err *err)
{
	return meta_bool(f->meta, "was", &a->was) == META_OK ? 0 :
		message_bad(f, "was", err, "is missing, or not true or false");
}

int store_answer_get(const struct frame *f, enum store_op op, size_t n, bool each, struct store_answer *a,
	struct ds_err *err)
{
	memset(a, 0, sizeof(*a));
	switch (op) {
	case STORE_OP_HAS: return answer_has(f, n, each, a, err);
	case STORE_OP_GET: return message_uint(f, f->meta, "got", true, 0, n, &a->got, err);
	case STORE_OP_PUT: return message_cstr(f, "result", true, a->result, sizeof(a->result), err);
	case STORE_OP_DEL: return answer_was(f, a, err);
	case STORE_OP_STAT: return message_map(f, "counters", &a->counters, err);
	default: return 0;
	}
}

void store_segment_put(struct meta_builder *b, uint64_t number)
{
	put_op(b, STORE_OP_SEGMENT);
	meta_put_uint(b, "number", number);
}

int store_segment_get(const struct frame *f, uint64_t *number, struct ds_err *err)
{
	return message_uint(f, f->meta, "number", true, 0, STORE_MESSAGE_SEGMENTS - 1, number, err);
}

void store_ranges_put(struct meta_builder *b, size_t n)
{
	const uint64_t shape[2] = { n, 4 };

	put_op(b, STORE_OP_RANGES);
	meta_put_tensor(b, "ranges", DT_I64, "item,what", shape, 2, 0, NULL);
}

static bool range_good(const struct store_range *r)
{
	return r->segment >= 0 && r->segment < STORE_MESSAGE_SEGMENTS && r->offset >= 0 &&
		r->data_bytes >= 0 && r->data_bytes <= UINT32_MAX &&
		r->head_bytes > FRAME_HEAD_BYTES && r->head_bytes <= STORE_MESSAGE_HEAD &&
		r->offset < INT64_MAX - STORE_MESSAGE_HEAD - (int64_t)UINT32_MAX;
}

int store_ranges_get(const struct frame *f, const struct store_range **v, size_t *n, struct ds_err *err)
{
	const void *p;
	int rc = get_rows(f, "ranges", DT_I64, 4, STORE_MESSAGE_KEYS, &p, n, err);

	if (rc)
		return rc;
	*v = p;
	for (size_t i = 0; i < *n; i++)
		if (!range_good(*v + i))
			return message_bad(f, "ranges", err, "has a row, %zu, that can be no item's", i);
	return 0;
}

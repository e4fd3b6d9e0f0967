/* What ranks of a unit say about their load, and what they are told about where experts are to lie. */
#include "frame/messages_unit.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "frame/messages_impl.h"

/* ---- tensors of a known shape ---- */

struct wanted { const char *name, *dims[3]; enum dtype type; size_t ndim; uint64_t shape[3]; };

static int not_wanted(const struct frame *f, const struct wanted *w, struct ds_err *err)
{
	char text[160] = "";
	size_t n = 0;

	for (size_t i = 0; i < w->ndim && n < sizeof(text); i++)
		n += (size_t)snprintf(text + n, sizeof(text) - n, "%s%s %llu", i ? ", " : "", w->dims[i],
			(unsigned long long)w->shape[i]);
	return message_bad(f, w->name, err, "is not %s [%s]", dtype_name(w->type), text);
}

/* Where the elements of the tensor lie; NULL where there is none of that name. */
static int get_tensor(const struct frame *f, const struct wanted *w, const void **p, struct ds_err *err)
{
	struct frame_tensor t;
	bool found = false;

	*p = NULL;
	for (size_t i = 0; !found && i < frame_tensor_count(f); i++) {
		int rc = frame_tensor_at(f, i, &t, err);

		if (rc)
			return rc;
		found = strcmp(t.name, w->name) == 0;
	}
	if (!found)
		return 0;
	if (t.type != w->type || t.ndim != w->ndim)
		return not_wanted(f, w, err);
	for (size_t i = 0; i < w->ndim; i++)
		if (t.shape[i] != w->shape[i] || strcmp(t.dims[i], w->dims[i]) != 0)
			return not_wanted(f, w, err);
	*p = f->data + t.offset;
	return 0;
}

/* Bytes of n elements as part of a payload. */
static bool payload_bytes(uint64_t a, uint64_t b, uint64_t c, size_t element, size_t *bytes)
{
	return mem_mul(a, b, bytes) && mem_mul(*bytes, c, bytes) && mem_mul(*bytes, element, bytes) &&
		*bytes <= UINT32_MAX / 4;
}

static int too_large(const char *what, struct ds_err *err)
{
	return err_set(err, DS_BUG, "a %s frame of more than 1 GiB a tensor", what);
}

/* ---- plan ---- */

int plan_write(struct frame_writer *w, struct meta_builder *b, const struct plan_message *p, struct ds_err *err)
{
	const uint64_t shape[3] = { p->layers, p->ranks, p->slots };
	struct iovec iov[2];
	size_t bytes;

	if (!payload_bytes(shape[0], shape[1], shape[2], sizeof(int32_t), &bytes))
		return too_large("plan", err);
	meta_reset(b);
	meta_put_uint(b, "epoch", p->epoch);
	meta_put_uint(b, "layers", p->layers);
	meta_put_uint(b, "experts", p->experts);
	meta_put_uint(b, "ranks", p->ranks);
	meta_put_uint(b, "slots", p->slots);
	meta_put_tensor(b, "placement", DT_I32, "layer,rank,slot", shape, 3, 0, NULL);
	iov[0] = (struct iovec){ (void *)(uintptr_t)p->placement, bytes };
	if (p->weights)
		meta_put_tensor(b, "weights", DT_F32, "layer,rank,slot", shape, 3, bytes, NULL);
	iov[1] = (struct iovec){ (void *)(uintptr_t)p->weights, bytes };
	return frame_write(w, FRAME_PLAN, 0, 0, b, iov, p->weights ? 2 : 1, true, err);
}

/* One layer: ids and weights are in range, every expert is there. */
static int check_layer(const struct frame *f, const struct plan_message *p, uint64_t layer, struct ds_err *err)
{
	const size_t row = (size_t)p->ranks * p->slots;
	const int32_t *ids = p->placement + layer * row;
	uint64_t seen[UNIT_MESSAGE_EXPERTS / 64];

	memset(seen, 0, (p->experts + 63) / 64 * 8);
	for (size_t s = 0; s < row; s++) {
		float w = p->weights && ids[s] >= 0 ? p->weights[layer * row + s] : 1.0f;

		if (ids[s] < -1 || (ids[s] >= 0 && (uint64_t)ids[s] >= p->experts))
			return message_bad(f, "placement", err,
				"of layer %llu, rank %zu, slot %zu is expert %d, not -1 to %llu",
				(unsigned long long)layer, s / p->slots, s % p->slots, ids[s],
				(unsigned long long)p->experts - 1);
		if (!(isfinite(w) && w > 0.0f))
			return message_bad(f, "weights", err,
				"of layer %llu, rank %zu, slot %zu is %g, not a finite number above 0",
				(unsigned long long)layer, s / p->slots, s % p->slots, (double)w);
		if (ids[s] >= 0)
			seen[ids[s] / 64] |= (uint64_t)1 << (ids[s] % 64);
	}
	for (uint64_t e = 0; e < p->experts; e++)
		if (!(seen[e / 64] >> (e % 64) & 1))
			return message_bad(f, "placement", err, "of layer %llu has no slot for expert %llu",
				(unsigned long long)layer, (unsigned long long)e);
	return 0;
}

static int get_sizes(const struct frame *f, struct plan_message *p, struct ds_err *err)
{
	int rc;

	if ((rc = message_uint(f, f->meta, "epoch", true, 1, INT64_MAX, &p->epoch, err)) ||
	    (rc = message_uint(f, f->meta, "layers", true, 1, UINT32_MAX, &p->layers, err)) ||
	    (rc = message_uint(f, f->meta, "experts", true, 1, UNIT_MESSAGE_EXPERTS, &p->experts, err)) ||
	    (rc = message_uint(f, f->meta, "ranks", true, 1, UNIT_MESSAGE_RANKS, &p->ranks, err)))
		return rc;
	return message_uint(f, f->meta, "slots", true, 1, UNIT_MESSAGE_EXPERTS, &p->slots, err);
}

int plan_get(const struct frame *f, struct plan_message *p, struct ds_err *err)
{
	struct wanted w = { "placement", { "layer", "rank", "slot" }, DT_I32, 3, { 0 } };
	const void *ids, *weights;
	int rc;

	memset(p, 0, sizeof(*p));
	rc = get_sizes(f, p, err);
	if (rc)
		return rc;
	w.shape[0] = p->layers;
	w.shape[1] = p->ranks;
	w.shape[2] = p->slots;
	rc = get_tensor(f, &w, &ids, err);
	if (rc)
		return rc;
	if (!ids)
		return message_bad(f, "placement", err, "is missing");
	w.name = "weights";
	w.type = DT_F32;
	rc = get_tensor(f, &w, &weights, err);
	p->placement = ids;
	p->weights = weights;
	for (uint64_t l = 0; !rc && l < p->layers; l++)
		rc = check_layer(f, p, l, err);
	return rc;
}

/* ---- load ---- */

static const char *const peer_keys[] = { "sent_bytes", "received_bytes", "waited_ns" };

static uint64_t *peer_value(struct load_peer *p, size_t key)
{
	return key == 0 ? &p->sent_bytes : key == 1 ? &p->received_bytes : &p->waited_ns;
}

static void put_peers(struct meta_builder *b, const struct load_message *m)
{
	for (size_t k = 0; k < ARRAY_LEN(peer_keys); k++) {
		meta_put_array(b, peer_keys[k]);
		for (size_t i = 0; i < m->world; i++) {
			struct load_peer p = m->peers[i];

			meta_put_uint(b, NULL, *peer_value(&p, k));
		}
		meta_put_end(b);
	}
}

int load_write(struct frame_writer *w, struct meta_builder *b, const struct load_message *m, struct ds_err *err)
{
	const uint64_t shape[2] = { m->layers, m->experts };
	struct iovec iov[2];
	size_t bytes;

	if (!payload_bytes(shape[0], shape[1], 1, sizeof(int64_t), &bytes))
		return too_large("load", err);
	meta_reset(b);
	meta_put_uint(b, "rank", m->rank);
	meta_put_uint(b, "world", m->world);
	meta_put_uint(b, "epoch", m->epoch);
	meta_put_uint(b, "plan", m->plan);
	meta_put_uint(b, "t_ns", m->t_ns);
	meta_put_uint(b, "interval_ns", m->interval_ns);
	meta_put_uint(b, "steps", m->steps);
	meta_put_uint(b, "rows", m->rows);
	meta_put_uint(b, "layer", m->layer);
	meta_put_uint(b, "layers", m->layers);
	meta_put_uint(b, "experts", m->experts);
	put_peers(b, m);
	meta_put_tensor(b, "counts", DT_I64, "layer,expert", shape, 2, 0, NULL);
	meta_put_tensor(b, "received", DT_I64, "layer,expert", shape, 2, bytes, NULL);
	iov[0] = (struct iovec){ (void *)(uintptr_t)m->counts, bytes };
	iov[1] = (struct iovec){ (void *)(uintptr_t)m->received, bytes };
	return frame_write(w, FRAME_LOAD, FRAME_DROPPABLE, 0, b, iov, 2, true, err);
}

static int get_counts(const struct frame *f, const struct load_message *m, const char *name, const int64_t **counts,
	struct ds_err *err)
{
	struct wanted w = { name, { "layer", "expert" }, DT_I64, 2, { m->layers, m->experts } };
	const void *p;
	int rc = get_tensor(f, &w, &p, err);

	if (rc)
		return rc;
	if (!p)
		return message_bad(f, name, err, "is missing");
	*counts = p;
	for (size_t i = 0; i < m->layers * m->experts; i++)
		if ((*counts)[i] < 0)
			return message_bad(f, name, err, "of layer %llu, expert %llu is %lld, below 0",
				(unsigned long long)(m->layer + i / m->experts),
				(unsigned long long)(i % m->experts), (long long)(*counts)[i]);
	return 0;
}

static int check_peers(const struct frame *f, uint64_t world, struct ds_err *err)
{
	struct meta a;
	uint64_t v;
	size_t n;
	int rc;

	for (size_t k = 0; k < ARRAY_LEN(peer_keys); k++) {
		rc = message_array(f, f->meta, peer_keys[k], UNIT_MESSAGE_RANKS, &a, &n, err);
		if (rc)
			return rc;
		if (n != world)
			return message_bad(f, peer_keys[k], err, "has %zu entries for a world of %llu", n,
				(unsigned long long)world);
		for (size_t i = 0; i < n; i++)
			if (meta_at_uint(a, i, &v) != META_OK)
				return message_bad(f, peer_keys[k], err, "holds something that is no whole number");
	}
	return 0;
}

int load_get(const struct frame *f, struct load_message *m, struct ds_err *err)
{
	int rc;

	memset(m, 0, sizeof(*m));
	if ((rc = message_uint(f, f->meta, "world", true, 1, UNIT_MESSAGE_RANKS, &m->world, err)) ||
	    (rc = message_uint(f, f->meta, "rank", true, 0, m->world - 1, &m->rank, err)) ||
	    (rc = message_uint(f, f->meta, "epoch", true, 0, UINT64_MAX, &m->epoch, err)) ||
	    (rc = message_uint(f, f->meta, "plan", true, 0, INT64_MAX, &m->plan, err)) ||
	    (rc = message_uint(f, f->meta, "t_ns", true, 0, UINT64_MAX, &m->t_ns, err)) ||
	    (rc = message_uint(f, f->meta, "interval_ns", true, 0, UINT64_MAX, &m->interval_ns, err)) ||
	    (rc = message_uint(f, f->meta, "steps", true, 0, UINT64_MAX, &m->steps, err)) ||
	    (rc = message_uint(f, f->meta, "rows", true, 0, UINT64_MAX, &m->rows, err)) ||
	    (rc = message_uint(f, f->meta, "layer", true, 0, UINT32_MAX, &m->layer, err)) ||
	    (rc = message_uint(f, f->meta, "layers", true, 1, UINT32_MAX, &m->layers, err)) ||
	    (rc = message_uint(f, f->meta, "experts", true, 1, UNIT_MESSAGE_EXPERTS, &m->experts, err)) ||
	    (rc = check_peers(f, m->world, err)) || (rc = get_counts(f, m, "counts", &m->counts, err)))
		return rc;
	return get_counts(f, m, "received", &m->received, err);
}

struct load_peer load_peer_at(const struct frame *f, size_t peer)
{
	struct load_peer p = { 0 };
	struct meta a;
	size_t n;

	for (size_t k = 0; k < ARRAY_LEN(peer_keys); k++)
		if (meta_array(f->meta, peer_keys[k], &a, &n) == META_OK)
			meta_at_uint(a, peer, peer_value(&p, k));
	return p;
}

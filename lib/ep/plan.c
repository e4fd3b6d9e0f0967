/* Plans: placements that come from outside. */
#include "ep/plan.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "frame/messages_unit.h"

/* ---- from a frame ---- */

static int fits(const struct frame *f, const char *what, uint64_t has, size_t want, struct ds_err *err)
{
	return has == want ? 0 : err_set(err, DS_PROTO, "frame %llu (plan): it is for %llu %s, this unit has %zu",
		(unsigned long long)f->number, (unsigned long long)has, what, want);
}

int plan_placement(const struct frame *f, const struct plan_shape *shape, struct placement **p, uint64_t *epoch,
	struct ds_err *err)
{
	struct plan_message m;
	int rc;

	*p = NULL;
	if (f->type != FRAME_PLAN)
		return err_set(err, DS_DATA, "frame %llu is not a plan", (unsigned long long)f->number);
	if (f->flags & FRAME_MORE)
		return err_set(err, DS_DATA, "frame %llu (plan): a plan cut into several frames is not supported",
			(unsigned long long)f->number);
	if ((rc = frame_check_payload(f, err)) || (rc = plan_get(f, &m, err)) ||
	    (rc = fits(f, "MoE layers", m.layers, shape->layers, err)) ||
	    (rc = fits(f, "experts", m.experts, shape->experts, err)) ||
	    (rc = fits(f, "ranks", m.ranks, shape->world, err)))
		return rc;
	/* empty slots are -1 there, which is EP_NONE here */
	rc = placement_from_map(p, shape->layers, shape->experts, shape->world, m.slots,
		(const uint32_t *)m.placement, m.weights, err);
	if (rc)
		return err_prefix(err, "frame %llu (plan)", (unsigned long long)f->number);
	*epoch = m.epoch;
	return 0;
}

/* ---- as bytes ---- */

/* In front of meta and, behind it, the payload; little-endian as this machine, whose ranks it goes to. */
struct packed { uint64_t number; uint32_t flags, meta_len, data_len, zero; };

int plan_pack(const struct frame *f, void **bytes, size_t *n, struct ds_err *err)
{
	struct packed h = { f->number, f->flags, f->meta_len, f->data_len, 0 };
	uint8_t *p;

	*bytes = NULL;
	*n = sizeof(h) + h.meta_len + h.data_len;
	if (h.meta_len > FRAME_META_MAX || h.data_len > PLAN_MOST_BYTES - sizeof(h) - h.meta_len)
		return err_set(err, DS_DATA, "frame %llu (plan): it takes %zu bytes, more than %d",
			(unsigned long long)f->number, *n, PLAN_MOST_BYTES);
	p = mem_array(*n, 1);
	if (!p)
		return err_nomem(err, *n, "a plan");
	memcpy(p, &h, sizeof(h));
	memcpy(p + sizeof(h), f->meta_raw, h.meta_len);
	if (h.data_len)
		memcpy(p + sizeof(h) + h.meta_len, f->data, h.data_len);
	*bytes = p;
	return 0;
}

int plan_unpack(const void *bytes, size_t n, const struct plan_shape *shape, struct placement **p, uint64_t *epoch,
	struct ds_err *err)
{
	const uint8_t *from = bytes;
	struct meta_doc *doc;
	struct packed h = { 0 };
	struct frame f;
	int rc;

	*p = NULL;
	if (n >= sizeof(h))
		memcpy(&h, from, sizeof(h));
	if (n < sizeof(h) || h.meta_len > n - sizeof(h) || h.data_len != n - sizeof(h) - h.meta_len)
		return err_set(err, DS_DATA, "a plan of %zu bytes is not as long as it says", n);
	from += sizeof(h);
	f = (struct frame){ .type = FRAME_PLAN, .flags = h.flags, .number = h.number, .data_len = h.data_len,
		.meta_raw = from, .meta_len = h.meta_len };
	rc = meta_parse(&doc, from, h.meta_len, err);
	if (rc)
		return err_prefix(err, "frame %llu (plan)", (unsigned long long)h.number);
	f.meta = meta_root(doc);
	f.data = mem_array(h.data_len + 1, 1); /* aligned */
	if (!f.data) {
		rc = err_nomem(err, h.data_len, "a plan");
		goto out;
	}
	memcpy(f.data, from + h.meta_len, h.data_len);
	rc = plan_placement(&f, shape, p, epoch, err);
out:
	free(f.data);
	meta_doc_free(doc);
	return rc;
}

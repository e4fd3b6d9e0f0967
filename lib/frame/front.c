/* The front of a frame: its head, its meta, and the header of its payload; and frames that lie in memory. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "frame/internal.h"

static const char *const type_names[FRAME_TYPE_COUNT] = {
	[FRAME_HELLO] = "hello", [FRAME_REQUEST] = "request", [FRAME_KV] = "kv", [FRAME_PREFILLED] = "prefilled",
	[FRAME_TOKEN] = "token", [FRAME_DONE] = "done", [FRAME_ERROR] = "error", [FRAME_CANCEL] = "cancel",
	[FRAME_STAT] = "stat", [FRAME_LOAD] = "load", [FRAME_PLAN] = "plan", [FRAME_STORE] = "store",
	[FRAME_TENSOR] = "tensor", [FRAME_TEXT] = "text", [FRAME_END] = "end",
};

const char *frame_type_name(unsigned type)
{
	return type < FRAME_TYPE_COUNT ? type_names[type] : NULL;
}

int front_head(const uint8_t h[FRAME_HEAD_BYTES], struct frame *f, struct ds_err *err)
{
	if (h[0] != 0x9a || h[1] != 0xa4 || memcmp(h + 2, "DSF", 3) != 0)
		return err_set(err, DS_DATA, "no DSF1 frame begins here");
	if (h[5] != '1')
		return err_set(err, DS_PROTO, "format version '%c' where this program speaks 1",
			h[5] > 32 && h[5] < 127 ? h[5] : '?');
	if (h[6] != 0xcc || h[8] != 0xcd || h[11] != 0xcf || h[20] != 0xcf || h[29] != 0xce || h[34] != 0xce ||
		h[39] != 0xce)
		return err_set(err, DS_DATA, "the head is damaged");
	f->type = h[7];
	f->flags = get_be16(h + 9);
	f->stream = get_be64(h + 12);
	f->seq = get_be64(h + 21);
	f->meta_len = get_be32(h + 30);
	f->data_len = get_be32(h + 35);
	if (f->meta_len < 1 || f->meta_len > FRAME_META_MAX)
		return err_set(err, DS_DATA, "meta of %u bytes, the limit is %d", f->meta_len, FRAME_META_MAX);
	return 0;
}

int front_meta(const uint8_t h[FRAME_HEAD_BYTES], const uint8_t *meta, const struct frame *f, struct ds_err *err)
{
	const uint8_t *bin = meta + f->meta_len;
	uint32_t sum = crc32_add(crc32_add(0, h, 39), meta, f->meta_len), said = get_be32(h + 40);

	if (sum != said)
		return err_set(err, DS_DATA, "CRC-32 of head and meta is %08x, the frame says %08x", sum, said);
	if (bin[0] != 0xc6 || get_be32(bin + 1) != f->data_len)
		return err_set(err, DS_DATA, "the payload's header does not agree with the head");
	return 0;
}

/* ---- in memory ---- */

struct frame_parser { msgpack_zone zone; msgpack_object root; };

int frame_parser_new(struct frame_parser **p, struct ds_err *err)
{
	*p = mem_calloc(1, sizeof **p);
	if (*p && msgpack_zone_init(&(*p)->zone, 4096))
		return 0;
	free(*p);
	*p = NULL;
	return err_nomem(err, 4096, "frame parser");
}

void frame_parser_free(struct frame_parser *p)
{
	if (p)
		msgpack_zone_destroy(&p->zone);
	free(p);
}

size_t frame_front_bytes(const uint8_t head[FRAME_HEAD_BYTES])
{
	struct ds_err err;
	struct frame f;

	return front_head(head, &f, &err) ? 0 : FRAME_HEAD_BYTES + (size_t)f.meta_len + FRAME_BIN_BYTES;
}

int frame_parse(struct frame_parser *p, const uint8_t *bytes, size_t n, struct frame *f, struct ds_err *err)
{
	const uint8_t *meta = bytes + FRAME_HEAD_BYTES;
	int rc;

	*f = (struct frame){ 0 };
	if (n < FRAME_HEAD_BYTES)
		return err_set(err, DS_DATA, "%zu bytes are no frame's head", n);
	rc = front_head(bytes, f, err);
	if (!rc && n - FRAME_HEAD_BYTES < (size_t)f->meta_len + FRAME_BIN_BYTES)
		rc = err_set(err, DS_DATA, "%zu bytes end within a frame's meta", n);
	if (!rc)
		rc = front_meta(bytes, meta, f, err);
	if (rc)
		return rc;
	msgpack_zone_clear(&p->zone);
	rc = meta_unpack(&p->zone, &p->root, meta, f->meta_len, err);
	if (rc)
		return rc;
	n -= FRAME_HEAD_BYTES + (size_t)f->meta_len + FRAME_BIN_BYTES;
	f->number = f->seq;
	f->meta.obj = &p->root;
	f->meta_raw = meta;
	if (f->data_len && n >= f->data_len)
		f->data = (uint8_t *)(uintptr_t)(meta + f->meta_len + FRAME_BIN_BYTES);
	return 0;
}

bool frame_drop(uint8_t *front, size_t n)
{
	struct ds_err err;
	struct frame f;

	if (n < FRAME_HEAD_BYTES || front_head(front, &f, &err) ||
		n - FRAME_HEAD_BYTES < (size_t)f.meta_len + FRAME_BIN_BYTES ||
		front_meta(front, front + FRAME_HEAD_BYTES, &f, &err))
		return false;
	front[7] = FRAME_DROPPED;
	put_be16(front + 9, FRAME_DROPPABLE);
	put_be32(front + 40, crc32_add(crc32_add(0, front, 39), front + FRAME_HEAD_BYTES, f.meta_len));
	return true;
}

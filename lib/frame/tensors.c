#include <string.h>

#include "base/xxh3.h"
#include "frame/internal.h"

enum { ROW_NAME, ROW_DTYPE, ROW_DIMS, ROW_SHAPE, ROW_OFFSET, ROW_NBYTES, ROW_SCALE, ROW_LENGTH };

static bool at_cstr(struct meta a, size_t i, char *dst, size_t cap)
{
	const char *s;
	size_t n;

	if (meta_at_str(a, i, &s, &n) != META_OK || n == 0 || n >= cap || memchr(s, 0, n))
		return false;
	memcpy(dst, s, n);
	dst[n] = 0;
	return true;
}

static int bad_row(const struct frame *f, size_t i, const char *why, struct ds_err *err)
{
	return err_set(err, DS_DATA, "frame %llu: tensor %zu: %s", (unsigned long long)f->number, i, why);
}

size_t frame_tensor_count(const struct frame *f)
{
	struct meta rows;
	size_t n;

	return meta_array(f->meta, "tensors", &rows, &n) == META_OK ? n : 0;
}

/* Dims and shape into t, the product of the shape times the element size into *bytes. */
static const char *read_shape(struct meta row, struct frame_tensor *t, uint64_t *bytes)
{
	struct meta dims, shape;
	size_t ndims, nshape;

	if (meta_at_array(row, ROW_DIMS, &dims, &ndims) != META_OK ||
		meta_at_array(row, ROW_SHAPE, &shape, &nshape) != META_OK)
		return "its axes or its shape are no array";
	if (ndims != nshape)
		return "its shape and its axis names differ in number";
	if (ndims > TENSOR_MAX_DIMS)
		return "it has more than eight axes";
	t->ndim = ndims;
	*bytes = dtype_size(t->type);
	for (size_t k = 0; k < ndims; k++) {
		if (!at_cstr(dims, k, t->dims[k], sizeof t->dims[k]))
			return "an axis name is no short string";
		if (meta_at_uint(shape, k, &t->shape[k]) != META_OK)
			return "its shape has an element that is no whole number";
		if (__builtin_mul_overflow(*bytes, t->shape[k], bytes))
			return "its shape is too large";
	}
	return NULL;
}

static const char *read_row(const struct frame *f, struct meta row, struct frame_tensor *t)
{
	const char *why, *scale;
	char name[32];
	uint64_t bytes;
	size_t n;

	if (!at_cstr(row, ROW_NAME, t->name, sizeof t->name))
		return "its name is no short string";
	if (!at_cstr(row, ROW_DTYPE, name, sizeof name) || (t->type = dtype_parse(name)) == DT_NONE)
		return "unknown dtype";
	why = read_shape(row, t, &bytes);
	if (why)
		return why;
	if (meta_at_uint(row, ROW_OFFSET, &t->offset) != META_OK ||
		meta_at_uint(row, ROW_NBYTES, &t->nbytes) != META_OK)
		return "its offset or its size is no whole number";
	if (bytes != t->nbytes)
		return "its size does not follow from its shape";
	if (t->offset > f->data_len || t->nbytes > f->data_len - t->offset)
		return "it reaches beyond the payload";
	if (t->offset % dtype_size(t->type))
		return "its offset is not aligned";
	t->scale[0] = 0;
	if (meta_at_str(row, ROW_SCALE, &scale, &n) != META_ABSENT &&
		!at_cstr(row, ROW_SCALE, t->scale, sizeof t->scale))
		return "the name of its scales is no short string";
	return NULL;
}

int frame_tensor_at(const struct frame *f, size_t i, struct frame_tensor *t, struct ds_err *err)
{
	struct meta rows, row;
	const char *why;
	size_t n, len;

	memset(t, 0, sizeof *t);
	if (meta_array(f->meta, "tensors", &rows, &n) != META_OK || meta_at_array(rows, i, &row, &len) != META_OK)
		return bad_row(f, i, "there is no such row", err);
	if (len < ROW_LENGTH)
		return bad_row(f, i, "its row is too short", err);
	why = read_row(f, row, t);
	if (!why)
		return 0;
	if (t->name[0])
		return err_set(err, DS_DATA, "frame %llu: tensor %zu, '%s': %s", (unsigned long long)f->number, i,
			t->name, why);
	return bad_row(f, i, why, err);
}

int frame_tensor_get(const struct frame *f, const char *name, struct frame_tensor *t, struct ds_err *err)
{
	struct meta rows, row;
	size_t count, len, n;
	const char *s;

	if (meta_array(f->meta, "tensors", &rows, &count) != META_OK)
		count = 0;
	for (size_t i = 0; i < count; i++)
		if (meta_at_array(rows, i, &row, &len) == META_OK && meta_at_str(row, ROW_NAME, &s, &n) == META_OK &&
			n == strlen(name) && memcmp(s, name, n) == 0)
			return frame_tensor_at(f, i, t, err);
	return err_set(err, DS_DATA, "frame %llu (%s) has no tensor '%s'", (unsigned long long)f->number,
		frame_type_name(f->type) ? frame_type_name(f->type) : "?", name);
}

int frame_check_payload(const struct frame *f, struct ds_err *err)
{
	uint64_t said, is;

	switch (meta_uint(f->meta, "xxh", &said)) {
	case META_ABSENT:
		return 0;
	case META_TYPE:
		return err_set(err, DS_DATA, "frame %llu: 'xxh' is no whole number", (unsigned long long)f->number);
	case META_OK:
		break;
	}
	is = f->hashed ? f->hash : xxh3(f->data ? (const void *)f->data : "", f->data_len);
	if (is != said)
		return err_set(err, DS_DATA,
			"frame %llu, stream %016llx, byte %llu: payload hash is %016llx, the frame says %016llx",
			(unsigned long long)f->number, (unsigned long long)f->stream, (unsigned long long)f->offset,
			(unsigned long long)is, (unsigned long long)said);
	return 0;
}

/* ds-frame pack: the tensors of a capture as a safetensors file. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "base/outfile.h"
#include "frame/capture.h"
#include "model/pack.h"

enum { PIECE = 1 << 20 };

struct packed { /* rows [from, from + n) of the capture's list are one tensor */
	size_t from, n;
	uint64_t rows, bytes;
	bool positions;
};

struct pack {
	struct capture c;
	size_t *rank;
	struct packed *t;
	size_t count;
	bool prefixed;
	struct outfile out;
};

/* ---- what there is ---- */

static int compare_keys(const void *a, const void *b, void *ctx)
{
	const struct point *keys = ctx;

	return point_compare(&keys[*(const size_t *)a], &keys[*(const size_t *)b]);
}

static int rank_keys(struct pack *p, struct ds_err *err)
{
	size_t n = p->c.key_count, *order = mem_array(n + 1, sizeof *order);

	p->rank = mem_array(n + 1, sizeof *p->rank);
	if (!order || !p->rank) {
		free(order);
		return err_nomem(err, n * sizeof *order, "points");
	}
	for (size_t i = 0; i < n; i++)
		order[i] = i;
	qsort_r(order, n, sizeof *order, compare_keys, p->c.keys);
	for (size_t i = 0; i < n; i++)
		p->rank[order[i]] = i;
	free(order);
	return 0;
}

static int other_shape(const struct pack *p, const struct cap_rows *r, struct ds_err *err)
{
	char name[POINT_NAME_MAX + 32];

	point_format(&p->c.keys[r->key], name);
	return err_set(err, DS_DATA,
		"'%s': rows of '%s' (stream %016llx) differ in width or type: no tensor holds both", p->c.name, name,
		(unsigned long long)r->stream);
}

/* Rows of one point and stream become a tensor. */
static int group(struct pack *p, struct ds_err *err)
{
	const struct cap_rows *r = p->c.rows;

	p->t = mem_array(p->c.row_count + 1, sizeof *p->t);
	if (!p->t)
		return err_nomem(err, p->c.row_count * sizeof *p->t, "tensors");
	for (size_t i = 0; i < p->c.row_count; i++) {
		struct packed *t = p->count ? &p->t[p->count - 1] : NULL;

		p->prefixed |= r[i].stream != r[0].stream;
		if (!t || r[i].key != r[t->from].key || r[i].stream != r[t->from].stream) {
			t = &p->t[p->count++];
			*t = (struct packed){ .from = i };
		} else if (r[i].cols != r[t->from].cols || r[i].type != r[t->from].type) {
			return other_shape(p, &r[i], err);
		}
		t->positions |= r[i].first != t->rows;
		t->n++;
		t->rows += r[i].count;
		t->bytes = t->rows * r[i].cols * dtype_size(r[i].type);
	}
	return 0;
}

/* ---- writing ---- */

static int put(struct pack *p, const void *data, size_t n, struct ds_err *err)
{
	const char *at = data;

	while (n) {
		ssize_t did = write(p->out.fd, at, n);

		if (did < 0 && errno == EINTR)
			continue;
		if (did < 0)
			return errno == EPIPE ? err_set(err, DS_SIGPIPE, "'%s': the reader has gone", p->out.path)
				: err_errno(err, DS_IO, "cannot write to '%s'", p->out.path);
		at += did;
		n -= (size_t)did;
	}
	return 0;
}

static void entry(struct jw *w, const char *name, enum dtype type, uint64_t rows, uint64_t cols, uint64_t *at)
{
	uint64_t bytes = rows * (cols ? cols : 1) * dtype_size(type);

	jw_key(w, name);
	jw_obj(w);
	jw_key(w, "dtype");
	jw_str(w, dtype_name(type));
	jw_key(w, "shape");
	jw_arr(w);
	jw_uint(w, rows);
	if (cols)
		jw_uint(w, cols);
	jw_arr_end(w);
	jw_key(w, "data_offsets");
	jw_arr(w);
	jw_uint(w, *at);
	jw_uint(w, *at + bytes);
	jw_arr_end(w);
	jw_obj_end(w);
	*at += bytes;
}

/* Not to be written, or not to be read again as what it is. */
static bool odd_name(const char *id)
{
	for (const char *s = id; *s; s++)
		if ((unsigned char)*s < ' ' || strchr("/\"\\", *s))
			return true;
	return strlen(id) == 16 && strspn(id, "0123456789abcdef") == 16;
}

static void name_tensor(const struct pack *p, const struct cap_rows *r, char *name, size_t cap)
{
	const struct cap_name *request = capture_name(&p->c, r->stream);
	char point[POINT_NAME_MAX + 32];

	point_format(&p->c.keys[r->key], point);
	if (!p->prefixed)
		snprintf(name, cap, "%s", point);
	else if (request && frame_stream_id(request->id, strlen(request->id)) == r->stream && !odd_name(request->id))
		snprintf(name, cap, "%s/%s", request->id, point);
	else
		snprintf(name, cap, "%016llx/%s", (unsigned long long)r->stream, point);
}

static int put_header(struct pack *p, struct ds_err *err)
{
	struct buf b = { 0 };
	uint8_t length[8];
	uint64_t at = 0;
	struct jw w;
	int rc;

	jw_init(&w, &b);
	jw_obj(&w);
	for (size_t i = 0; i < p->count; i++) {
		const struct packed *t = &p->t[i];
		const struct cap_rows *r = &p->c.rows[t->from];
		char name[400];

		name_tensor(p, r, name, sizeof name - 20);
		entry(&w, name, r->type, t->rows, r->cols, &at);
		strcat(name, ".positions");
		if (t->positions)
			entry(&w, name, DT_I64, t->rows, 0, &at);
	}
	jw_obj_end(&w);
	while ((b.len + sizeof length) % 64 && !b.nomem)
		buf_str(&b, " "); /* data at a multiple of a cache line */
	for (int i = 0; i < 8; i++)
		length[i] = (uint8_t)((uint64_t)b.len >> 8 * i);
	rc = b.nomem ? err_nomem(err, b.len, "a header") : put(p, length, sizeof length, err);
	if (!rc)
		rc = put(p, b.p, b.len, err);
	buf_free(&b);
	return rc;
}

static int put_rows(struct pack *p, const struct cap_rows *r, struct ds_err *err)
{
	size_t row = (size_t)r->cols * dtype_size(r->type);
	uint64_t most = PIECE / row ? PIECE / row : 1;
	char *buf = mem_array((size_t)(r->count < most ? r->count : most), row);
	int rc = buf ? 0 : err_nomem(err, row, "rows");

	for (uint64_t done = 0, n; !rc && done < r->count; done += n) {
		n = r->count - done < most ? r->count - done : most;
		rc = capture_read(&p->c, r, done, n, buf, err);
		if (!rc)
			rc = put(p, buf, (size_t)n * row, err);
	}
	free(buf);
	return rc;
}

static int put_positions(struct pack *p, const struct packed *t, struct ds_err *err)
{
	int64_t some[1024];
	size_t n = 0;
	int rc = 0;

	for (size_t i = 0; !rc && i < t->n; i++) {
		const struct cap_rows *r = &p->c.rows[t->from + i];

		for (uint64_t k = 0; !rc && k < r->count; k++) {
			some[n++] = (int64_t)(r->first + k);
			if (n == ARRAY_LEN(some)) {
				rc = put(p, some, sizeof some, err);
				n = 0;
			}
		}
	}
	return rc ? rc : put(p, some, n * sizeof *some, err);
}

static int put_all(struct pack *p, struct ds_err *err)
{
	int rc = put_header(p, err);

	for (size_t i = 0; !rc && i < p->count; i++) {
		for (size_t k = 0; !rc && k < p->t[i].n; k++)
			rc = put_rows(p, &p->c.rows[p->t[i].from + k], err);
		if (!rc && p->t[i].positions)
			rc = put_positions(p, &p->t[i], err);
	}
	return rc;
}

int tool_pack(const struct tool_options *o, const char *path, struct ds_err *err)
{
	struct pack p = { .out = { .fd = -1 } };
	int rc = capture_open(&p.c, path, o->max_frame, o->force, err);

	if (rc)
		return rc;
	rc = rank_keys(&p, err);
	if (!rc)
		rc = capture_settle(&p.c, p.rank, err);
	if (!rc)
		rc = group(&p, err);
	if (!rc && !p.count)
		rc = err_set(err, DS_DATA, "'%s' holds no tensors", p.c.name);
	if (!rc)
		rc = outfile_open(&p.out, o->output, o->force, false, err);
	if (!rc)
		rc = put_all(&p, err);
	if (!rc)
		rc = outfile_commit(&p.out, err);
	outfile_discard(&p.out);
	capture_close(&p.c);
	free(p.rank);
	free(p.t);
	return rc;
}

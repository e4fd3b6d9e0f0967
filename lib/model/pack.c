/* ds-frame pack: the tensors of a capture as a safetensors file. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "base/outfile.h"
#include "frame/capture.h"
#include "model/pack.h"
#include "model/safetensors.h"

enum { PIECE = 1 << 20 };

enum part { ROWS, POSITIONS, PARTS };

struct packed { /* rows [from, from + n) of the capture's list are one tensor */
	size_t from, n;
	uint64_t rows, bytes;
	bool positions;
	uint64_t at[PARTS]; /* place in the file */
};

struct pack {
	struct capture c;
	size_t *rank;
	struct packed *t;
	size_t count;
	bool prefixed;
	uint64_t placed;
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
	size_t n = p->c.keys.n, *order = mem_array(n + 1, sizeof *order);

	p->rank = mem_array(n + 1, sizeof *p->rank);
	if (!order || !p->rank) {
		free(order);
		return err_nomem(err, n * sizeof *order, "points");
	}
	for (size_t i = 0; i < n; i++)
		order[i] = i;
	qsort_r(order, n, sizeof *order, compare_keys, p->c.keys.v);
	for (size_t i = 0; i < n; i++)
		p->rank[order[i]] = i;
	free(order);
	return 0;
}

static int other_shape(const struct pack *p, const struct cap_rows *r, struct ds_err *err)
{
	char name[POINT_NAME_MAX + 32];

	point_format(&p->c.keys.v[r->key], name);
	return err_set(err, DS_DATA,
		"'%s': rows of '%s' (stream %016llx) differ in width or type: no tensor holds both", p->c.name, name,
		(unsigned long long)r->stream);
}

/* Not to be written, or not to be read again as what it is. */
static bool odd_text(const char *s, const char *odd)
{
	for (; *s; s++)
		if ((unsigned char)*s < ' ' || strchr(odd, *s))
			return true;
	return false;
}

static bool odd_id(const char *id)
{
	return odd_text(id, "/\"\\") || (strlen(id) == 16 && strspn(id, "0123456789abcdef") == 16);
}

/* A point's name must not look like another tensor's; what looks like a request's in front gets one. */
static int check_name(struct pack *p, const struct cap_rows *r, struct ds_err *err)
{
	static const char suffix[] = ".positions";
	const struct cap_name *request = capture_name(&p->c, r->stream);
	const char *name = p->c.keys.v[r->key].name;
	size_t n = strlen(name), k = sizeof suffix - 1;

	if (odd_text(name, "\"\\") || (n >= k && strcmp(name + n - k, suffix) == 0))
		return err_set(err, DS_DATA, "'%s': a point called '%s' cannot be packed: it could not be read again",
			p->c.name, name);
	p->prefixed |= r->stream != p->c.rows[0].stream || strchr(name, '/') || strcmp(name, "__metadata__") == 0 ||
		(request && request->choice);
	return 0;
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

		if (!t || r[i].key != r[t->from].key || r[i].stream != r[t->from].stream) {
			t = &p->t[p->count++];
			*t = (struct packed){ .from = i };
			if (check_name(p, &r[i], err))
				return err->code;
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

static void entry(struct jw *w, const char *name, enum dtype type, uint64_t rows, uint64_t cols, uint64_t at)
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
	jw_uint(w, at);
	jw_uint(w, at + bytes);
	jw_arr_end(w);
	jw_obj_end(w);
}

static void name_tensor(const struct pack *p, const struct cap_rows *r, char *name, size_t cap)
{
	const struct cap_name *request = capture_name(&p->c, r->stream);
	char point[POINT_NAME_MAX + 32];

	point_format(&p->c.keys.v[r->key], point);
	if (!p->prefixed)
		snprintf(name, cap, "%s", point);
	else if (request && frame_stream_id(request->id, strlen(request->id)) == r->stream && !odd_id(request->id))
		snprintf(name, cap, "%s/%s", request->id, point);
	else
		snprintf(name, cap, "%016llx/%s", (unsigned long long)r->stream, point);
}

static int put_header(struct pack *p, struct ds_err *err)
{
	struct buf b = { 0 };
	uint8_t length[8];
	struct jw w;
	int rc;

	jw_init(&w, &b);
	jw_obj(&w);
	for (size_t i = 0; i < p->count; i++) {
		const struct packed *t = &p->t[i];
		const struct cap_rows *r = &p->c.rows[t->from];
		char name[400];

		name_tensor(p, r, name, sizeof name - 20);
		entry(&w, name, r->type, t->rows, r->cols, t->at[ROWS]);
		strcat(name, ".positions");
		if (t->positions)
			entry(&w, name, DT_I64, t->rows, 0, t->at[POSITIONS]);
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

static int put_part(struct pack *p, struct packed *t, enum part part, struct ds_err *err)
{
	int rc = 0;

	if (part == POSITIONS)
		return put_positions(p, t, err);
	for (size_t k = 0; !rc && k < t->n; k++)
		rc = put_rows(p, &p->c.rows[t->from + k], err);
	return rc;
}

static uint64_t part_bytes(const struct packed *t, enum part part)
{
	return part == POSITIONS ? t->rows * dtype_size(DT_I64) : t->bytes;
}

static int place_part(struct pack *p, struct packed *t, enum part part, struct ds_err *err)
{
	(void)err;
	t->at[part] = p->placed;
	p->placed += part_bytes(t, part);
	return 0;
}

/* In the order in which they lie in the file. */
static int each_part(struct pack *p, int (*fn)(struct pack *p, struct packed *t, enum part part, struct ds_err *err),
	struct ds_err *err)
{
	int rc = 0;

	for (uint32_t class = ST_PLACE_FIRST; class; class /= 2)
		for (size_t i = 0; i < p->count; i++)
			for (int part = ROWS; !rc && part <= (p->t[i].positions ? POSITIONS : ROWS); part++) {
				enum dtype type = part == ROWS ? p->c.rows[p->t[i].from].type : DT_I64;

				if (st_place_class(part_bytes(&p->t[i], part), (uint32_t)dtype_size(type)) == class)
					rc = fn(p, &p->t[i], part, err);
			}
	return rc;
}

static int put_all(struct pack *p, struct ds_err *err)
{
	int rc = each_part(p, place_part, err);

	if (!rc)
		rc = put_header(p, err);
	return rc ? rc : each_part(p, put_part, err);
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

/* ds-frame unpack: a safetensors file as a capture. */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "base/version.h"
#include "frame/hello.h"
#include "frame/messages.h"
#include "frame/slice.h"
#include "model/pack.h"
#include "model/safetensors.h"

/* ---- maps of names ---- */

static size_t stars(const char *s, size_t n)
{
	size_t k = 0;

	for (size_t i = 0; i < n; i++)
		k += s[i] == '*';
	return k;
}

enum { MAP_STARS = 8 };

int map_check(const char *map, struct ds_err *err)
{
	const char *equal = strchr(map, '=');

	if (!equal || equal == map || !equal[1] || !utf8_valid(map, strlen(map), NULL))
		return err_set(err, DS_USAGE, "--map: '%s' is not FROM=TO, both UTF-8", map);
	if (stars(map, (size_t)(equal - map)) > MAP_STARS ||
		stars(equal + 1, strlen(equal + 1)) > stars(map, (size_t)(equal - map)))
		return err_set(err, DS_USAGE, "--map: '%s': at most 8 stars, and none in TO that FROM does not have",
			map);
	return 0;
}

struct piece { size_t from, to; };

/* Matches a pattern whose only wildcard is the star; each takes as little as it can but for the last before a
 * mismatch, which takes more: linear, and complete for such patterns. */
static bool match(const char *p, size_t pn, const char *s, size_t n, struct piece *star)
{
	size_t i = 0, j = 0, last = SIZE_MAX, k = 0;

	while (j < n) {
		if (i < pn && p[i] == '*') {
			last = i++;
			star[k++] = (struct piece){ j, j };
		} else if (i < pn && p[i] == s[j]) {
			i++;
			j++;
		} else if (last != SIZE_MAX) {
			i = last + 1;
			j = ++star[k - 1].to;
		} else {
			return false;
		}
	}
	while (i < pn && p[i] == '*') {
		star[k++] = (struct piece){ n, n };
		i++;
	}
	return i == pn;
}

bool map_name(const char *map, const char *name, size_t n, char *dst, size_t cap)
{
	const char *equal = strchr(map, '=');
	struct piece star[MAP_STARS];
	size_t used = 0, k = 0;

	if (!match(map, (size_t)(equal - map), name, n, star))
		return false;
	for (const char *t = equal + 1; *t; t++) {
		const char *from = *t == '*' ? name + star[k].from : t;
		size_t len = *t == '*' ? star[k].to - star[k].from : 1;

		k += *t == '*';
		if (used + len >= cap)
			return false;
		memcpy(dst + used, from, len);
		used += len;
	}
	dst[used] = 0;
	return true;
}

/* ---- one tensor ---- */

/* Rows that a tensor gave to a point of a stream, [first, end). */
struct taken {
	size_t point;
	uint64_t stream, first, end;
	const struct st_tensor *by;
};

struct unpack {
	struct slice_out out;
	uint64_t max_frame;
	const struct unpack_options *u;
	struct st_file file;
	const struct st_tensor **by_name;
	struct point_rows *segs;
	struct point_set points;
	struct taken *taken;
	size_t seg_cap, taken_count, taken_cap, written, empty;
};

static int bad(const struct unpack *u, const struct st_tensor *t, const char *why, struct ds_err *err)
{
	return err_set(err, DS_DATA, "cannot use '%s': tensor '%.*s': %s", u->file.path, (int)t->name_len, t->name,
		why);
}

/* The name it gets; false: it is left out. */
static bool rename_tensor(const struct unpack *u, const struct st_tensor *t, char *name, size_t cap)
{
	const struct opt_list *maps = u->u->maps;

	for (size_t i = 0; i < maps->n; i++)
		if (map_name(maps->v[i], t->name, t->name_len, name, cap))
			return true;
	snprintf(name, cap, "%.*s", (int)t->name_len, t->name);
	return !maps->n;
}

/* Whose a tensor is, as far as its name says it. */
static struct point_rows owner_of(const struct unpack *u, const char *name, const char **point)
{
	const char *slash = strchr(name, '/'), *request = u->u->request ? u->u->request : "r0";
	size_t n = slash ? (size_t)(slash - name) : strlen(request);
	struct point_rows r = { .id = slash ? name : request, .id_len = n };

	*point = slash ? slash + 1 : name;
	r.stream = frame_stream_id(r.id, n);
	if (slash && n == 16 && strspn(name, "0123456789abcdef") == 16)
		r = (struct point_rows){ .stream = strtoull(name, NULL, 16) };
	if (!n || n > REQUEST_ID_MAX) /* no request is so called */
		r.id = NULL;
	return r;
}

/* [rows, columns] of what may have a batch of one in front, or heads behind. */
static const char *flatten(const struct st_tensor *t, uint64_t *rows, uint64_t *cols)
{
	uint32_t first = 0;

	while (t->rank - first > 2 && t->shape[first] == 1)
		first++;
	*rows = t->rank ? t->shape[first] : 1;
	*cols = 1;
	for (uint32_t i = first + 1; i < t->rank; i++)
		if (__builtin_mul_overflow(*cols, t->shape[i], cols))
			return "its shape overflows";
	return NULL;
}

static int compare_tensors(const void *a, const void *b)
{
	const struct st_tensor *x = *(const struct st_tensor *const *)a, *y = *(const struct st_tensor *const *)b;
	int order = memcmp(x->name, y->name, x->name_len < y->name_len ? x->name_len : y->name_len);

	return order ? order : x->name_len < y->name_len ? -1 : x->name_len > y->name_len;
}

static int sort_names(struct unpack *u, struct ds_err *err)
{
	size_t n = u->file.count;

	u->by_name = mem_array(n + 1, sizeof *u->by_name);
	if (!u->by_name)
		return err_nomem(err, n * sizeof *u->by_name, "tensors");
	for (size_t i = 0; i < n; i++)
		u->by_name[i] = &u->file.tensors[i];
	qsort(u->by_name, n, sizeof *u->by_name, compare_tensors);
	for (size_t i = 1; i < n; i++)
		if (compare_tensors(&u->by_name[i - 1], &u->by_name[i]) == 0)
			return bad(u, u->by_name[i], "it is there twice", err);
	return 0;
}

static const struct st_tensor *find_positions(const struct unpack *u, const struct st_tensor *t)
{
	char name[ST_MAX_NAME + 16];
	struct st_tensor key = { .name = name }, *want = &key;
	const struct st_tensor **at;

	key.name_len = (uint32_t)snprintf(name, sizeof name, "%.*s.positions", (int)t->name_len, t->name);
	at = bsearch(&want, u->by_name, u->file.count, sizeof *u->by_name, compare_tensors);
	return at ? *at : NULL;
}

static bool ends_with(const char *s, size_t n, const char *end)
{
	return n > strlen(end) && memcmp(s + n - strlen(end), end, strlen(end)) == 0;
}

static int add_seg(struct unpack *u, size_t *n, const struct point_rows *owner, uint64_t position, struct ds_err *err)
{
	struct point_rows *last = *n ? &u->segs[*n - 1] : NULL, *p;

	if (last && last->first + last->count == position) {
		last->count++;
		return 0;
	}
	p = mem_more(u->segs, &u->seg_cap, *n, sizeof *p);
	if (!p)
		return err_nomem(err, *n * sizeof *p, "positions");
	u->segs = p;
	p[*n] = *owner;
	p[*n].first = position;
	p[(*n)++].count = 1;
	return 0;
}

/* The segments that say where the rows belong: as NAME.positions says, else 0, 1, 2, ... */
static int list_rows(struct unpack *u, const struct st_tensor *t, const struct point_rows *owner, uint64_t rows,
	size_t *n, struct ds_err *err)
{
	const struct st_tensor *p = find_positions(u, t);
	int rc = 0;

	*n = 0;
	if (!p) {
		rc = add_seg(u, n, owner, 0, err);
		if (!rc)
			u->segs[0].count = rows;
		return rc;
	}
	if ((p->type != DT_I64 && p->type != DT_I32) || p->rank != 1 || p->shape[0] != rows)
		return bad(u, p, "it is not one I64 or I32 for each row", err);
	for (uint64_t i = 0; !rc && i < rows; i++) {
		int64_t at = int_at(p->type, p->data, i);

		if (at < 0 || at > (int64_t)1 << 61)
			return bad(u, p, "a position is out of range", err);
		rc = add_seg(u, n, owner, (uint64_t)at, err);
	}
	return rc;
}

static int take(struct unpack *u, const struct st_tensor *t, const struct point *point, size_t segs, struct ds_err *err)
{
	size_t key;

	if (point_set_add(&u->points, point, &key, err))
		return err->code;
	for (size_t i = 0; i < segs; i++) {
		const struct point_rows *r = &u->segs[i];
		struct taken *p = mem_more(u->taken, &u->taken_cap, u->taken_count, sizeof *p);

		if (!p)
			return err_nomem(err, u->taken_count * sizeof *p, "positions");
		u->taken = p;
		p[u->taken_count++] = (struct taken){ key, r->stream, r->first, r->first + r->count, t };
	}
	return 0;
}

static int compare_taken(const void *a, const void *b)
{
	const struct taken *x = a, *y = b;

	if (x->point != y->point)
		return x->point < y->point ? -1 : 1;
	if (x->stream != y->stream)
		return x->stream < y->stream ? -1 : 1;
	return x->first < y->first ? -1 : x->first > y->first;
}

/* A map that is too wide gives one row to several tensors, of which only the last would be seen. */
static int check_taken(const struct unpack *u, struct ds_err *err)
{
	char name[POINT_NAME_MAX + 32];

	if (u->taken_count)
		qsort(u->taken, u->taken_count, sizeof *u->taken, compare_taken);
	for (size_t i = 1; i < u->taken_count; i++) {
		const struct taken *a = &u->taken[i - 1], *b = &u->taken[i];

		if (a->point != b->point || a->stream != b->stream || a->end <= b->first)
			continue;
		point_format(&u->points.v[a->point], name);
		if (a->by == b->by)
			return bad(u, a->by, "a position comes twice", err);
		return err_set(err, DS_DATA,
			"cannot use '%s': tensors '%.*s' and '%.*s' both have position %llu of '%s'%s",
			u->file.path, (int)a->by->name_len, a->by->name, (int)b->by->name_len, b->by->name,
			(unsigned long long)b->first, name, u->u->maps->n ? " by what --map says" : "");
	}
	return 0;
}

static int unpack_one(struct unpack *u, const struct st_tensor *t, struct ds_err *err)
{
	char name[2 * ST_MAX_NAME];
	const char *text, *why;
	struct point point;
	struct point_data d = { .point = &point, .type = t->type, .data = t->data,
		.max_frame = u->max_frame };
	struct point_rows owner;
	uint64_t rows, cols;
	int rc;

	if (ends_with(t->name, t->name_len, ".positions") || !rename_tensor(u, t, name, sizeof name))
		return 0;
	owner = owner_of(u, name, &text);
	if (!point_parse(text, strlen(text), &point))
		return bad(u, t, "its name is too long for a point's, or empty; --map gives it another", err);
	why = t->type == DT_NONE ? "frames have no such type; give a --map for each that is wanted"
		: flatten(t, &rows, &cols);
	if (why)
		return bad(u, t, why, err);
	if (!rows || !cols) { /* what an expert without tokens gets */
		u->empty++;
		return 0;
	}
	if (t->bytes / rows > u->max_frame / 64 * 64) /* no reader would take it: payloads are padded */
		return bad(u, t, "a row has more bytes than a frame may (--max-frame); are its axes [tokens, columns]?",
			err);
	rc = list_rows(u, t, &owner, rows, &d.seg_count, err);
	if (!rc)
		rc = take(u, t, &point, d.seg_count, err);
	if (rc)
		return rc;
	d.cols = (size_t)cols;
	d.segs = u->segs;
	u->written++;
	return point_write(u->out.w, u->out.meta, &d, NULL, err);
}

/* ---- the file ---- */

static int say_hello(struct unpack *u, struct ds_err *err)
{
	struct hello h = { .minor = DS_FRAME_MINOR, .program = "ds-frame", .version = DS_VERSION, .role = "unpack" };

	meta_reset(u->out.meta);
	hello_put(u->out.meta, &h);
	return frame_write(u->out.w, FRAME_HELLO, 0, 0, u->out.meta, NULL, 0, false, err);
}

static int unpack_all(struct unpack *u, struct ds_err *err)
{
	int rc = say_hello(u, err);

	for (size_t i = 0; !rc && i < u->file.count; i++)
		rc = unpack_one(u, &u->file.tensors[i], err);
	if (!rc)
		rc = check_taken(u, err);
	rc = st_result(&u->file, rc, err);
	if (!rc && !u->written)
		rc = err_set(err, DS_DATA, "'%s': %s", u->file.path,
			u->empty ? "all of its tensors that are wanted are empty" :
			u->u->maps->n ? "no tensor's name matches a --map" : "it holds no tensors");
	if (!rc)
		log_msg(LOG_INFO, "%zu of %zu tensors of '%s'; %zu empty", u->written, u->file.count, u->file.path,
			u->empty);
	return rc;
}

int tool_unpack(const struct tool_options *o, const struct unpack_options *how, const char *path, struct ds_err *err)
{
	struct unpack u = { .u = how, .max_frame = o->max_frame };
	int rc = 0;

	if (how->request && (!*how->request || strlen(how->request) > REQUEST_ID_MAX ||
		!utf8_valid(how->request, strlen(how->request), NULL)))
		return err_set(err, DS_USAGE, "--request: '%s' is no name of a request, 1 to %d bytes of UTF-8",
			how->request, REQUEST_ID_MAX);
	for (size_t i = 0; !rc && i < how->maps->n; i++)
		rc = map_check(how->maps->v[i], err);
	if (!rc)
		rc = st_open(&u.file, path, err);
	if (rc)
		return rc;
	rc = st_result(&u.file, sort_names(&u, err), err);
	if (!rc)
		rc = slice_open(&u.out, o, err);
	if (!rc)
		rc = slice_close(&u.out, unpack_all(&u, err), err);
	st_close(&u.file);
	point_set_free(&u.points);
	free(u.taken);
	free(u.by_name);
	free(u.segs);
	return rc;
}

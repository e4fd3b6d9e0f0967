/* ds-frame check: is a capture whole and sound? */
#include <stdio.h>

#include "base/log.h"
#include "frame/input.h"
#include "frame/messages.h"
#include "frame/messages_unit.h"
#include "frame/point.h"
#include "frame/tools.h"

struct check {
	uint64_t frames;
	union { /* room for what is read */
		struct request request;
		struct prefilled prefilled;
		struct token token;
		struct done done;
		struct error_message error;
		struct kv_block kv;
		struct load_message load;
		struct plan_message plan;
	} u;
	struct sampled first[REQUEST_MAX_N];
};

/* Every row is sound, names are distinct, scales exist. */
static int check_tensors(const struct frame *f, struct ds_err *err)
{
	struct frame_tensor t, other;
	size_t n = frame_tensor_count(f);
	struct meta rows;
	size_t k;
	int rc = 0;

	if (meta_array(f->meta, "tensors", &rows, &k) == META_TYPE)
		return err_set(err, DS_DATA, "frame %llu: 'tensors' is no array", (unsigned long long)f->number);
	for (size_t i = 0; i < n && !rc; i++) {
		rc = frame_tensor_at(f, i, &t, err);
		if (!rc && t.scale[0])
			rc = frame_tensor_get(f, t.scale, &other, err);
		if (!rc)
			rc = frame_tensor_get(f, t.name, &other, err);
		if (!rc && (other.offset != t.offset || other.nbytes != t.nbytes))
			rc = err_set(err, DS_DATA, "frame %llu: two tensors are called '%s'",
				(unsigned long long)f->number, t.name);
	}
	return rc;
}

static int check_request(struct check *c, const struct frame *f, struct ds_err *err)
{
	const uint32_t *ids;
	size_t n;
	int rc = request_get(f, &c->u.request, err);

	return rc ? rc : request_tokens(f, &ids, &n, err);
}

static int check_prefilled(struct check *c, const struct frame *f, struct ds_err *err)
{
	struct meta tokens;
	size_t n;

	if (meta_array(f->meta, "tokens", &tokens, &n) != META_OK || n > REQUEST_MAX_N)
		n = 1;
	return prefilled_get(f, c->first, n, &c->u.prefilled, err);
}

/* The keys that its type has. */
static int check_keys(struct check *c, const struct frame *f, struct ds_err *err)
{
	struct frame_tensor t;
	struct point_frame p;

	switch (f->type) {
	case FRAME_REQUEST: return check_request(c, f, err);
	case FRAME_KV: return kv_block_get(f, &c->u.kv, &t, err);
	case FRAME_PREFILLED: return check_prefilled(c, f, err);
	case FRAME_TOKEN: return token_get(f, &c->u.token, err);
	case FRAME_DONE: return done_get(f, &c->u.done, err);
	case FRAME_ERROR: return error_get(f, &c->u.error, err);
	case FRAME_LOAD: return load_get(f, &c->u.load, err);
	case FRAME_PLAN: return plan_get(f, &c->u.plan, err);
	default: return point_frame_is(f) ? point_frame_get(f, &p, err) : 0;
	}
}

static int check_frame(struct frame *f, void *ctx, struct ds_err *err)
{
	struct check *c = ctx;
	int rc = input_order(f, err);

	c->frames = f->number + 1;
	if (!rc)
		rc = check_tensors(f, err);
	if (!rc)
		rc = frame_check_payload(f, err);
	return rc ? rc : check_keys(c, f, err);
}

static int check_one(const struct tool_options *o, const char *path, struct ds_err *err)
{
	struct check c = { .frames = 0 };
	struct input in;
	uint64_t bytes;
	int rc = input_open(&in, path, o->force, err);

	if (rc)
		return rc;
	rc = input_frames(&in, o->max_frame, false, check_frame, &c, &bytes, err);
	input_close(&in);
	if (!rc && printf("%s: %llu frames, %llu bytes, ok\n", in.name, (unsigned long long)c.frames,
		(unsigned long long)bytes) < 0)
		rc = err_errno(err, DS_IO, "cannot write to '<stdout>'");
	return rc;
}

/* All files are checked; the first error's code is the program's. */
int tool_check(const struct tool_options *o, char **paths, int n, struct ds_err *err)
{
	int rc = 0;

	for (int i = 0; i < n || i == 0; i++) {
		int bad = check_one(o, n ? paths[i] : "-", err);

		if (bad)
			log_err(err);
		if (!rc)
			rc = bad;
	}
	err->text[0] = 0;
	return rc;
}

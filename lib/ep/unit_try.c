/*
 * Trying the unit's address on a thread of its own: a name may take long to resolve, the socket's directory may be
 * locked, and the mesh's thread has peers to answer meanwhile.
 *
 * The thread is not waited for where the unit ends first: what it has then got it gives back itself.  A name that takes
 * longer than it may is looked up again.
 */
#include "ep/unit_impl.h"

#include <errno.h>
#include <sys/stat.h>

#include "base/log.h"
#include "base/time.h"
#include "net/aside.h"

enum { LOOK_UPS = 8 }; /* that unit_timeout has time for */

struct unit_try {
	struct aside aside;       /* first */
	struct unit *u;           /* it waits for this until it has taken or left it */
	struct addr addr;
	int64_t look_up_ns;
	bool anywhere, over, begun;
	struct unit_tried result;
	struct stat st;           /* of the socket's file */
};

static bool file_of(const struct unit_try *t, struct stat *st)
{
	return t->addr.kind == ADDR_UNIX && !lstat(t->addr.path, st);
}

static void discard(struct aside *a)
{
	struct unit_try *t = (struct unit_try *)a;
	struct stat st;

	if (t->result.held >= 0 && file_of(t, &st) && st.st_ino == t->st.st_ino && st.st_dev == t->st.st_dev)
		unlink(t->addr.path);
	if (t->result.held >= 0)
		close(t->result.held);
	if (t->result.fd >= 0)
		close(t->result.fd);
	free(t);
}

/* To hold the address; where another process does, or this rank may not, to connect to it. */
static void try_it(struct aside *a)
{
	struct unit_try *t = (struct unit_try *)a;
	struct unit_tried *r = &t->result;

	if (!addr_bind(&t->addr, t->anywhere, t->over, time_mono_ns() + t->look_up_ns, &r->held, &r->why_not_held)) {
		if (!file_of(t, &t->st))
			memset(&t->st, 0, sizeof(t->st));
		return;
	}
	r->held = -1;
	r->taken = errno == EADDRINUSE || errno == EADDRNOTAVAIL;
	r->why = r->why_not_held;
	if ((r->taken || t->begun) && addr_start_until(&t->addr, time_mono_ns() + t->look_up_ns, &r->fd, &r->why))
		r->fd = -1;
}

static void tell(struct aside *a)
{
	struct unit *u = ((struct unit_try *)a)->u;
	struct ds_err err;

	if (mesh_call(u->mesh, unit_tried_here, u, &err))
		log_err(&err);
}

int unit_try(struct unit *u, bool over, struct ds_err *err)
{
	struct unit_try *t;

	if (u->seek.trying) /* of an earlier search: it is as good */
		return 0;
	t = mem_calloc(1, sizeof(*t));
	if (!t)
		return err_nomem(err, sizeof(*t), "a try");
	*t = (struct unit_try){ .aside = { .run = try_it, .over = tell, .discard = discard }, .u = u, .addr = u->addr,
		.look_up_ns = u->c.unit_timeout_ns / LOOK_UPS, .anywhere = u->c.anywhere, .over = over,
		.begun = u->m.begun, .result = { .held = -1, .fd = -1 } };
	if (!aside_start(&t->aside))
		return err_errno(err, DS_OS, "cannot make a thread");
	u->seek.trying = t;
	return 0;
}

bool unit_try_take(struct unit *u, struct unit_tried *r)
{
	struct unit_try *t = u->seek.trying;

	if (!t || !aside_done(&t->aside))
		return false;
	*r = t->result;
	t->result.held = t->result.fd = -1;
	unit_try_drop(u);
	return true;
}

void unit_try_drop(struct unit *u)
{
	struct unit_try *t = u->seek.trying;

	u->seek.trying = NULL;
	if (t)
		aside_leave(&t->aside);
}

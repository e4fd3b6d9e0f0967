/* The imitation of a slower network (transport.h, struct link): when a message would be there. */
#ifndef DS_EP_LINK_H
#define DS_EP_LINK_H

#include "ep/transport.h"

/* When a message that is posted now is there; *busy_ns is when the link is free, and is moved on. */
int64_t link_there(const struct link *l, int64_t *busy_ns, size_t bytes, int64_t now);

#endif

// Addresses within the console. A name may hold anything, a slash for one, and is one part of the path.

export const topicLink = (name, tab = "", query = {}) => {
  const said = new URLSearchParams(query).toString();
  return `#/topic/${encodeURIComponent(name)}${tab ? `/${tab}` : ""}${said ? `?${said}` : ""}`;
};
export const searchLink = (name, query = {}) => {
  const said = new URLSearchParams(query).toString();
  return `#/search/${encodeURIComponent(name)}${said ? `?${said}` : ""}`;
};

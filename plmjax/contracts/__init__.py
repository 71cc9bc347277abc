"""The interfaces between the packages of plmjax. A new system implements them with classes in its own file."""
